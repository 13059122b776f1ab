// DOM of one answer: reasoning, text, waiting line, errors with their actions, tools and figures.
import { nothing, render } from "../vendor/lit/lit-html.js";
import { answerMenu, figuresLine, trouble } from "./answer_parts.js";
import { CallList, foldSummary } from "./calls.js";
import { DifferenceView } from "./difference_view.js";
import { TimelineView } from "./timeline.js";
import { h, iconButton } from "./dom.js";
import { readDraft } from "./drafts.js";
import { Editor } from "./editor.js";
import { openMenu } from "./menu.js";
import { copy } from "./notices.js";
import { blockTexts, MarkdownStream } from "./render.js";
import { VersionSwitch } from "./versions.js";
import { WaitLine } from "./waiting.js";
import { isThinking, isUnfinished, reasoningLabel } from "./labels.js";

/** @import { Message, MessageActions, Status } from "./types.js" */

/** Attributes of a scroller that the keyboard reaches. */
const SCROLLER = { tabindex: "0", role: "group", "aria-label": "Reasoning" };

export class AnswerView {
  #text = /** @type {MarkdownStream} */ (/** @type {unknown} */ (null));
  #thinking = /** @type {MarkdownStream} */ (/** @type {unknown} */ (null));
  #isDrawn = true;
  #isLive = false; // as of the last time
  // Characters of text and reasoning, pieces and calls that are shown
  #written = 0;
  #thought = 0;
  #pieces = 0;
  #called = 0;

  /**
   * @param {Message} message @param {MessageActions} actions
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
    this.editor = h("div");
    this.calls = new CallList(actions, (results) => this.actions.sendResults(this.message.id, results));
    this.wait = new WaitLine(actions, () => this.message);
    this.trouble = h("div", { class: "trouble", role: "group", "aria-label": "Problem", hidden: true });
    this.figures = h("p", { class: "figures" });
    this.versions = new VersionSwitch(actions.choose);
    const button = (/** @type {string} */ kind, /** @type {string} */ label, /** @type {() => void} */ onclick) =>
      h("button", { class: `button small ${kind}`, type: "button", onclick }, label);
    this.resume = button("resume", "Continue", () => this.actions.resume(this.message.id));
    this.copy = iconButton("copy", "Copy answer", (button) => copy(this.message.content, button));
    this.tools = h(
      "div",
      { class: "tools" },
      message.run ? button("pick", "Go on with this one", () => this.actions.choose(this.message.id, 0)) : null,
      this.versions.node,
      this.copy,
      iconButton("again", "Answer again", () => this.actions.regenerate(this.message.id)),
      iconButton("more", "More", (button) => openMenu(button, answerMenu(this)), { "aria-haspopup": "menu" }),
      this.figures,
      this.resume,
    );
    this.difference = new DifferenceView(actions.find);
    this.timeline = new TimelineView((stream) => this.actions.timeline(stream));
    this.node = h(
      "article",
      { class: "message message-answer", "aria-label": "Answer", "data-role": "assistant" },
      this.reasoning,
      this.editor,
      this.body,
      this.calls.node,
      this.wait.node,
      this.trouble,
      this.tools,
      this.difference.node,
      this.timeline.node,
    );
    this.node.addEventListener("contentvisibilityautostatechange", (event) => {
      if (!(/** @type {ContentVisibilityAutoStateChangeEvent} */ (event).skipped)) this.draw();
    });
    this.#clear();
    this.show(message);
    if (readDraft(this.#draft)) this.edit();
  }

  get #draft() {
    return `edit.${this.message.id}`;
  }

  /** Shows the deferred text; also called when the answer is near the viewport. */
  draw() {
    if (this.#isDrawn) return;
    this.#isDrawn = true;
    this.show(this.message);
  }

  /** Shows the present state of the message, or of a newer copy of it. @param {Message} message */
  show(message) {
    const before = this.message;
    this.message = message;
    if (message !== before && !this.#extends(before)) this.#clear();
    if (this.#isDrawn) this.#write();
    const isLive = message.state === "streaming";
    const pieces = message.pieces ?? 0;
    if (!isLive) this.#finish();
    else if (isThinking(message)) this.wait.thinking(message);
    else if (pieces !== this.#pieces) this.#clearWait();
    else if (!pieces && !this.wait.isShown) this.status({ state: "running" });
    this.#pieces = pieces;
    this.#showSummary();
    render(figuresLine(message), this.figures);
    if (isLive && this.#isLive) return; // the rest changes at the beginning and at the end
    this.#isLive = isLive;
    const { error, state } = message;
    this.trouble.hidden = state !== "error" || !error;
    render(this.trouble.hidden || !error ? nothing : trouble(message, error, this.actions), this.trouble);
    this.#showTools(isLive);
    this.timeline.show(message);
    this.difference.show(message);
  }

  /** Whether the message extends the shown part of an older copy. @param {Message} before */
  #extends({ content, thinking = "" }) {
    const { message } = this;
    return (
      message.content.startsWith(content.slice(0, this.#written)) &&
      (message.thinking ?? "").startsWith(thinking.slice(0, this.#thought))
    );
  }

  #clear() {
    this.#text?.finish();
    this.#thinking?.finish();
    this.body.replaceChildren();
    this.thinking.replaceChildren();
    this.calls.clear();
    this.reasoning.hidden = true;
    this.#text = new MarkdownStream(this.body);
    this.#thinking = new MarkdownStream(this.thinking);
    this.#written = this.#thought = this.#called = 0;
  }

  /** Writes what has arrived since the last time. Reasoning is unfolded until the answer begins. */
  #write() {
    const { message } = this;
    const { content, thinking = "", calls = [] } = message;
    if (thinking.length > this.#thought) {
      if (!this.#thought) this.reasoning.open = isThinking(message);
      this.reasoning.hidden = false;
      this.#thinking.write(thinking.slice(this.#thought));
      this.#thought = thinking.length;
    }
    if ((content && !this.#written) || (calls.length && !this.#called)) this.reasoning.open = false;
    if (content.length > this.#written) this.#text.write(content.slice(this.#written));
    this.#written = content.length;
    this.#called = calls.length;
    this.calls.show(message);
  }

  #finish() {
    this.#clearWait();
    this.#text.finish();
    this.#thinking.finish();
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

  /** Shows the editor of the answer in place of its text. */
  edit() {
    const { id, content } = this.message;
    const close = () => {
      this.editor.replaceChildren();
      this.body.hidden = false;
    };
    const editor = new Editor({
      draft: this.#draft,
      text: content,
      label: "Edit answer",
      onCancel: () => {
        close();
        this.tools.querySelector("button")?.focus();
      },
      actions: [
        ["Continue from the cursor", (text, caret) => this.actions.goOnFrom(id, text.slice(0, caret))],
        ["Save", (text) => this.actions.rewrite(id, text)],
      ],
    });
    this.body.hidden = true;
    this.editor.replaceChildren(editor.node);
    return editor;
  }

  /** Texts of the blocks, for screen readers. */
  get blockTexts() {
    return blockTexts(this.body);
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
    this.#showCursor();
  }

  #clearWait() {
    if (this.wait.isShown) this.wait.hide();
    this.#showCursor();
  }

  /** Shows the cursor while text arrives. */
  #showCursor() {
    this.body.classList.toggle("live", this.message.state === "streaming" && !this.wait.isShown);
  }

  /** @param {boolean} isLive */
  #showTools(isLive) {
    const { message } = this;
    this.#showCursor();
    this.node.setAttribute("aria-busy", String(isLive));
    // An empty answer has no text to copy, and its error already offers the next action.
    for (const button of this.tools.querySelectorAll(":scope > .icon-button"))
      button.toggleAttribute("hidden", isLive || (message.state === "error" && !message.content));
    this.copy.hidden ||= !message.content;
    this.resume.hidden = isLive || message.state === "error" || !isUnfinished(message);
  }
}
