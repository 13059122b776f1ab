// DOM of one answer: reasoning, text, waiting line, errors with their actions, tools and figures.
import { CallList, foldSummary } from "./calls.js";
import { TimelineView } from "./timeline.js";
import { h, icon, iconButton } from "./dom.js";
import { copy } from "./notices.js";
import { MarkdownStream } from "./render.js";
import { WaitLine } from "./waiting.js";
import { ending, errorText, figures, isThinking, isUnfinished, reasoningLabel } from "./labels.js";

/** @import { Message, MessageError, Status, Timeline } from "./types.js" */

/**
 * @typedef {{ regenerate(id: string): void, resume(id: string): void, edit(id: string, text: string): boolean, retryNow(id: string): void,
 *   sendResults(id: string, results: (string | undefined)[]): boolean, leaveOut(id: string): void, startOver(): void, askKey(): void, timeline(stream: string): Promise<Timeline> }} Actions
 */

/** Attributes of a scroller that the keyboard reaches. */
const SCROLLER = { tabindex: "0", role: "group", "aria-label": "Reasoning" };

export class AnswerView {
  #text = /** @type {MarkdownStream | null} */ (null);
  #thinking = /** @type {MarkdownStream | null} */ (null);
  #isDrawn = true;

  /**
   * @param {Message} message @param {Actions} actions
   * @param {boolean} [later] defer the text of a complete answer to `draw`
   */
  constructor(message, actions, later = false) {
    this.#isDrawn = !later || message.state === "streaming";
    this.message = message;
    this.actions = actions;
    this.summary = h("span");
    this.thinking = h("div", { class: "prose" });
    // While it arrives it scrolls in itself, and a column in reverse stays at its end.
    this.thinkingFrame = h("div", { class: "fold-body" }, this.thinking);
    this.reasoning = h(
      "details",
      { class: "fold reasoning", hidden: true },
      foldSummary(this.summary),
      this.thinkingFrame,
    );
    this.body = h("div", { class: "body prose" });
    this.calls = new CallList((results) => this.actions.sendResults(this.message.id, results));
    this.wait = new WaitLine(() => this.actions.retryNow(this.message.id));
    this.trouble = h("div", { class: "trouble", role: "group", "aria-label": "Problem", hidden: true });
    this.figures = h("p", { class: "figures" });
    this.resume = h(
      "button",
      { class: "button small resume", type: "button", onclick: () => this.actions.resume(this.message.id) },
      "Continue",
    );
    this.copy = iconButton("copy", "Copy answer", (button) => copy(this.message.content, button));
    this.tools = h(
      "div",
      { class: "tools" },
      this.copy,
      iconButton("again", "Answer again", () => this.actions.regenerate(this.message.id)),
      this.figures,
      this.resume,
    );
    this.timeline = new TimelineView((stream) => this.actions.timeline(stream));
    this.node = h(
      "article",
      { class: "message message-answer", "aria-label": "Answer", "data-role": "assistant" },
      this.reasoning,
      this.body,
      this.calls.node,
      this.wait.node,
      this.trouble,
      this.tools,
      this.timeline.node,
    );
    this.node.addEventListener("contentvisibilityautostatechange", (event) => {
      if (!(/** @type {ContentVisibilityAutoStateChangeEvent} */ (event).skipped)) this.draw();
    });
    this.begin();
  }

  /** Shows the deferred text; also called when the answer isLive near the viewport. */
  draw() {
    if (this.#isDrawn) return;
    this.#isDrawn = true;
    this.begin();
  }

  /** Redraws the message in its current state. */
  begin() {
    const { message } = this;
    this.#text?.finish();
    this.#thinking?.finish();
    this.body.replaceChildren();
    this.thinking.replaceChildren();
    this.calls.clear();
    this.reasoning.hidden = true;
    this.trouble.hidden = true;
    this.#text = new MarkdownStream(this.body);
    this.#thinking = new MarkdownStream(this.thinking);
    if (this.#isDrawn && message.thinking) this.think(message.thinking);
    if (this.#isDrawn && message.content) this.#text.write(message.content);
    if (this.#isDrawn) this.calls.show(message);
    if (message.state !== "streaming") return this.settle();
    this.#setLive(true);
    this.#showFigures();
    if (!message.pieces) this.status({ state: "running" });
  }

  /** @param {string} text */
  write(text) {
    if (this.wait.isShown) this.#clearWait();
    if (this.#text?.isEmpty) this.reasoning.open = false;
    this.#showSummary();
    this.trouble.hidden = true;
    this.#text?.write(text);
    this.#showFigures();
  }

  /** Shows further parts of tool calls. */
  call() {
    if (this.wait.isShown) this.#clearWait();
    if (this.message.calls?.length === 1 && !this.message.content) this.reasoning.open = false;
    this.#showSummary();
    this.calls.show(this.message);
    this.#showFigures();
  }

  /**
   * Adopts a newer copy of the message if it only extends the shown one; returns whether it did.
   * @param {Message} message
   */
  adopt(message) {
    const before = this.message;
    if (message.id !== before.id || !message.content.startsWith(before.content)) return false;
    this.message = message;
    if (this.#isDrawn) this.calls.show(message);
    if (before.state !== "streaming") return message.state === before.state;
    const added = message.thinking?.slice(before.thinking?.length ?? 0);
    if (added) this.think(added);
    if (message.content.length > before.content.length) this.write(message.content.slice(before.content.length));
    if (message.state !== "streaming") this.settle();
    return true;
  }

  /** Appends reasoning, which is unfolded while it arrives and folded when the answer begins. @param {string} text */
  think(text) {
    const { message } = this;
    const isLive = isThinking(message);
    if (this.reasoning.hidden) this.reasoning.open = isLive;
    this.reasoning.hidden = false;
    this.#thinking?.write(text);
    this.#showSummary();
    if (isLive) this.wait.thinking(message);
  }

  /** Shows the reason for a wait. @param {Status} status */
  status(status) {
    const { message } = this;
    if (status.state === "running" && message.pieces) {
      this.#clearWait();
      if (isThinking(message)) this.wait.thinking(message);
      return;
    }
    this.#wait(() => this.wait.status(status));
  }

  reconnecting() {
    this.#wait(() => this.wait.reconnecting());
  }

  offline() {
    this.#wait(() => this.wait.offline());
  }

  /** @param {{ message: string }} error @param {number} at */
  retrying(error, at) {
    this.#wait(() => this.wait.retrying(error, at));
  }

  /** Shows the final state of an ended answer: text, figures and possibly an error. */
  settle() {
    this.#clearWait();
    this.#setLive(false);
    this.#text?.finish();
    this.#thinking?.finish();
    this.#showSummary();
    if (this.#isDrawn) this.calls.show(this.message);
    const { error, state } = this.message;
    this.trouble.hidden = state !== "error" || !error;
    if (state === "error" && error) this.#showError(error);
    this.#showFigures();
  }

  /** Returns the text of each block, for screen readers. @returns {string[]} */
  blockTexts() {
    return [...this.body.children]
      .map((block) => {
        const copied = /** @type {HTMLElement} */ (block.cloneNode(true));
        for (const math of copied.querySelectorAll(".math"))
          math.textContent = /** @type {HTMLElement} */ (math).dataset.tex ?? "";
        return (copied.textContent ?? "").trim();
      })
      .filter(Boolean);
  }

  #showSummary() {
    const { message } = this;
    this.#limitReasoning(isThinking(message));
    this.summary.textContent = isThinking(message)
      ? "Thinking"
      : reasoningLabel(message, 0).replace(/^Thinking.*/, "Reasoning");
  }

  /** Limits the height of the reasoning while it arrives. @param {boolean} isLive */
  #limitReasoning(isLive) {
    this.reasoning.classList.toggle("live", isLive);
    for (const [name, value] of Object.entries(SCROLLER)) {
      if (isLive) this.thinkingFrame.setAttribute(name, value);
      else this.thinkingFrame.removeAttribute(name);
    }
  }

  /** @param {() => void} show */
  #wait(show) {
    show();
    this.body.classList.remove("live"); // the cursor is shown only while text arrives
  }

  #clearWait() {
    this.wait.hide();
    this.body.classList.toggle("live", this.message.state === "streaming");
  }

  /** @param {boolean} live */
  #setLive(live) {
    const { message } = this;
    this.body.classList.toggle("live", live);
    this.node.setAttribute("aria-busy", String(live));
    // An empty answer has no text to copy, and its error already offers the next action.
    for (const button of this.tools.querySelectorAll(".icon-button"))
      button.toggleAttribute("hidden", live || (message.state === "error" && !message.content));
    this.copy.hidden ||= !message.content;
    this.resume.hidden = live || message.state === "error" || !isUnfinished(message);
  }

  /** @param {MessageError} error */
  #showError(error) {
    const { id } = this.message;
    const button = (/** @type {string} */ label, /** @type {() => void} */ run) =>
      h("button", { class: "button small", type: "button", onclick: () => run() }, label);
    const again = isUnfinished(this.message)
      ? button("Continue", () => this.actions.resume(id))
      : button("Try again", () => this.actions.regenerate(id));
    // A retry of a conversation that exceeds the context would fail again.
    const buttons =
      error.code === "context_length_exceeded"
        ? [
            button("Leave out the oldest messages", () => this.actions.leaveOut(id)),
            button("New conversation", () => this.actions.startOver()),
          ]
        : [error.status === 401 && button("Enter key", () => this.actions.askKey()), again];
    const code = [error.status || "", error.code ?? ""].filter(Boolean).join(" ");
    this.trouble.replaceChildren(
      icon("warn"),
      h("div", { class: "trouble-text" }, errorText(error), code && h("span", { class: "trouble-code" }, code)),
      h("div", { class: "trouble-tools" }, ...buttons),
    );
  }

  #showFigures() {
    const parts = figures(this.message).map((text, i) =>
      h("span", { class: i && / tokens?$/.test(text) ? "secondary" : null }, text),
    );
    const end = ending(this.message);
    if (end) parts.push(h("span", { class: "note" }, end));
    this.figures.replaceChildren(...parts);
    this.timeline.show(this.message);
  }
}
