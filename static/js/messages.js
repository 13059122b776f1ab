// View of an answer: reasoning, text, waiting line, errors with their actions, tools and figures.
import { html, nothing, render } from "../vendor/lit/lit-html.js";
import { answerMenu, figuresLine, trouble } from "./answer_parts.js";
import { CallList } from "./calls.js";
import { differenceView } from "./difference_view.js";
import { h } from "./dom.js";
import { Editor } from "./editor.js";
import { isStreaming, isThinking, isUnfinished, reasoningLabel } from "./labels.js";
import { openMenu } from "./menu.js";
import { MessageView } from "./message_view.js";
import { copy } from "./notices.js";
import { blockTexts, MarkdownStream } from "./render.js";
import { button, iconButton, summary } from "./templates.js";
import { TimelineView } from "./timeline.js";
import { versionSwitch } from "./versions.js";
import { WaitLine } from "./waiting.js";

/** @import { Message, MessageActions, Status } from "./types.js" */

/** A text that arrives in pieces. The template does not touch what is in its element. */
class ArrivingText {
  length = 0; // characters that are shown
  #stream;

  /** @param {string} kind class of its element */
  constructor(kind) {
    this.node = h("div", { class: kind });
    this.#stream = new MarkdownStream(this.node);
  }

  /** @param {string} text the whole of it @param {boolean} isLive whether more may follow */
  show(text, isLive) {
    if (text.length > this.length) this.#stream.write(text.slice(this.length));
    this.length = text.length;
    if (!isLive) this.#stream.finish();
  }
}

export class AnswerView extends MessageView {
  #text = new ArrivingText("body prose");
  #thinking = new ArrivingText("prose");
  #unfolded = false; // as of the last change by itself; the user may have folded the reasoning
  #pieces = 0; // that were shown
  #calls = this.#newCalls();
  #editor = /** @type {Editor | null} */ (null);
  #redraw = () => this.#render();
  #wait = new WaitLine(this.#redraw, () => this.actions.timeline(this.message.stream ?? ""));
  #timeline = new TimelineView(this.#redraw, (stream) => this.actions.timeline(stream));

  /** @param {Message} message @param {MessageActions} actions */
  constructor(message, actions) {
    super(message, actions, { class: "message message-answer", "aria-label": "Answer", "data-role": "assistant" });
  }

  #newCalls() {
    return new CallList(this.actions, (results) => this.actions.sendResults(this.message.id, results));
  }

  /** @override @param {Message} before */
  update(before) {
    const { message } = this;
    const { content, thinking = "", calls = [], pieces = 0 } = message;
    if (message !== before && !this.#extends(before)) this.#clear();
    const isLive = isStreaming(message);
    // Reasoning is unfolded until the answer begins.
    if (thinking && !this.#thinking.length) this.#unfolded = isThinking(message);
    if (content || calls.length) this.#unfolded = false;
    this.#thinking.show(thinking, isLive);
    this.#text.show(content, isLive);
    if (!isLive || (pieces !== this.#pieces && !isThinking(message))) this.#wait.hide();
    else if (isThinking(message)) this.#wait.thinking(message);
    else if (!pieces && !this.#wait.isShown) this.#wait.status({ state: "running" });
    this.#pieces = pieces;
    this.#render();
  }

  /** Whether the message extends the shown part of an older copy. @param {Message} before */
  #extends({ content, thinking = "" }) {
    const { message } = this;
    return (
      message.content.startsWith(content.slice(0, this.#text.length)) &&
      (message.thinking ?? "").startsWith(thinking.slice(0, this.#thinking.length))
    );
  }

  #clear() {
    this.#text = new ArrivingText("body prose");
    this.#thinking = new ArrivingText("prose");
    this.#calls = this.#newCalls();
  }

  #render() {
    const { message, actions } = this;
    const isLive = isStreaming(message);
    const { error, state } = message;
    const body = this.#text.node;
    const wait = this.#wait.template(() => actions.retryNow(message.id));
    body.classList.toggle("live", isLive && wait === nothing); // with the cursor while text arrives
    body.hidden = Boolean(this.#editor);
    if (this.node.ariaBusy !== String(isLive)) this.node.ariaBusy = String(isLive);
    render(
      html`${message.thinking ? this.#reasoning() : nothing}${this.#editor?.node ?? nothing}${body}${[
        this.#calls.template(message),
        wait,
        state === "error" && error ? trouble(message, error, actions) : nothing,
        this.#tools(isLive),
        differenceView(message, actions.find),
        this.#timeline.template(message),
      ]}`,
      this.node,
    );
  }

  #reasoning() {
    const { message } = this;
    const isLive = isThinking(message);
    const label = isLive ? "Thinking" : reasoningLabel(message, 0).replace(/^Thinking.*/, "Reasoning");
    // While it arrives it scrolls in itself, and a column in reverse stays at its end.
    return html`<details class="fold reasoning ${isLive ? "live" : ""}" ?open=${this.#unfolded}>
      ${summary(html`<span>${label}</span>`)}
      <div class="fold-body" tabindex=${isLive ? "0" : nothing} role=${isLive ? "group" : nothing}
        aria-label=${isLive ? "Reasoning" : nothing}>${this.#thinking.node}</div>
    </details>`;
  }

  /** @param {boolean} isLive */
  #tools(isLive) {
    const { message, actions } = this;
    const { id, content, run, state } = message;
    // An empty answer has no text to copy, and its error already offers the next action.
    const hasTools = !isLive && (state !== "error" || content);
    return html`<div class="tools">
      ${run ? button("Go on with this one", () => actions.choose(id, 0), "pick") : nothing}${[
        versionSwitch(this.siblings, message, actions.choose),
        hasTools && content ? iconButton("copy", "Copy answer", (button) => copy(content, button)) : nothing,
        hasTools ? iconButton("again", "Answer again", () => actions.regenerate(id)) : nothing,
        hasTools
          ? iconButton("more", "More", (button) => openMenu(button, answerMenu(this)), { opensMenu: true })
          : nothing,
      ]}
      <p class="figures">${figuresLine(message)}</p>
      ${!isLive && state !== "error" && isUnfinished(message) ? button("Continue", () => actions.resume(id), "resume") : nothing}
    </div>`;
  }

  /** Shows the reason for a wait. @param {Status} status */
  status(status) {
    const { message } = this;
    if (status.state !== "running" || !message.pieces) this.#wait.status(status);
    else if (isThinking(message)) this.#wait.thinking(message);
    else this.#wait.hide();
    this.#render();
  }

  reconnecting() {
    this.#wait.reconnecting();
    this.#render();
  }

  offline() {
    this.#wait.offline();
    this.#render();
  }

  /** @param {{ message: string }} error @param {number} at */
  retrying(error, at) {
    this.#wait.retrying(error, at);
    this.#render();
  }

  /** @override */
  edit() {
    this.draw();
    const { id, content } = this.message;
    this.#editor ??= new Editor({
      draft: this.draft,
      text: content,
      label: "Edit answer",
      onCancel: () => {
        this.#editor = null;
        this.#render();
        /** @type {HTMLElement | null} */ (this.node.querySelector(".tools button"))?.focus();
      },
      actions: [
        ["Continue from the cursor", (text, caret) => this.actions.goOnFrom(id, text.slice(0, caret))],
        ["Save", (text) => this.actions.rewrite(id, text)],
      ],
    });
    this.#render();
    return this.#editor;
  }

  /** Texts of the blocks, for screen readers. */
  get blockTexts() {
    return blockTexts(this.#text.node);
  }
}
