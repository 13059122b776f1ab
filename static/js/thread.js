// Column of messages of the open conversation: its views and their messages.
import { byId, h } from "./dom.js";
import { EXAMPLES } from "./env.js";
import { showHits } from "./hits.js";
import { whenIdle } from "./idle.js";
import { isStreaming } from "./labels.js";
import { AnswerView } from "./messages.js";
import { UserView } from "./question.js";
import { AutoScroll } from "./scroll.js";
import { Tree } from "./tree.js";
import { focusVersion } from "./versions.js";

/** @import { Conversation, Message, MessageActions } from "./types.js" */

const DRAWN_AT_ONCE = 12; // messages at the end of a conversation that are drawn when it is opened; more than a screen

export class Thread {
  #stopDrawing = () => {};
  #conversation = "";
  #views = /** @type {Map<string, AnswerView | UserView>} */ (new Map());

  /** @param {MessageActions} actions */
  constructor(actions) {
    this.actions = actions;
    this.node = byId("thread");
    this.empty = byId("empty");
    this.apart = h("div", { class: "side-by-side" });
    this.follow = new AutoScroll(byId("scroller"), this.node, byId("jump"));
    byId("examples").append(
      ...EXAMPLES.map((text) =>
        h("li", {}, h("button", { class: "example", type: "button", onclick: () => actions.send(text) }, text)),
      ),
    );
  }

  /** Shows the path of a conversation. Messages that are shown already keep their views. @param {Conversation} conversation */
  show(conversation) {
    const tree = new Tree(conversation);
    const { path, open } = tree;
    const shown = [...(open.length ? path.slice(0, -1) : path), ...open];
    const views = [...this.#views.values()];
    const same =
      conversation.id === this.#conversation ? views.findIndex((view, i) => view.message.id !== shown[i]?.id) : 0;
    const kept = same < 0 ? views.length : same;
    for (const { message, node } of views.slice(kept)) {
      this.#views.delete(message.id);
      node.remove();
    }
    const added = shown.slice(kept).map((message) => this.#add(message));
    this.apart.remove();
    [...views.slice(0, kept), ...added].forEach((view, i) => {
      // Of the others only a newer copy can differ from what is shown.
      const siblings = tree.siblings(shown[i]);
      const isAlone = siblings.length < 2 && view.siblings.length < 2;
      if (view.message !== shown[i] || i >= shown.length - 2 || !isAlone) view.show(shown[i], siblings);
      if (i >= shown.length - DRAWN_AT_ONCE || isStreaming(shown[i])) view.draw();
      const column = open.includes(shown[i]) ? this.apart : this.node;
      if (view.node.parentNode !== column) column.append(view.node);
    });
    if (open.length) this.node.append(this.apart);
    this.#drawWhenIdle(added);
    this.#markFirst(conversation.first);
    this.empty.hidden = shown.length > 0;
    this.node.hidden = !shown.length;
    if (conversation.id !== this.#conversation) this.follow.open(shown.length > 0);
    this.#conversation = conversation.id;
  }

  /** Draws the line above the first message that is sent, if older ones are left out. @param {string} [first] */
  #markFirst(first = "") {
    this.node.querySelector(".left-out")?.remove();
    this.#views.get(first)?.node.before(h("p", { class: "left-out" }, "The model no longer sees the messages above."));
  }

  /** @param {Message} message */
  #add(message) {
    const view = new (message.role === "user" ? UserView : AnswerView)(message, this.actions);
    this.#views.set(message.id, view);
    return view;
  }

  /**
   * Draws older messages while idle, newest first: all at once would block the page, and the browser's search needs
   * them.
   * @param {(AnswerView | UserView)[]} views
   */
  #drawWhenIdle(views) {
    if (!views.length) return;
    this.#stopDrawing();
    this.#stopDrawing = whenIdle(() => {
      views.pop()?.draw();
      return views.length > 0;
    });
  }

  /** Draws the messages that the browser was not idle for, since all of them are printed. */
  drawAll() {
    for (const view of this.#views.values()) view.draw();
  }

  /** @param {Message} message @returns {AnswerView | null} */
  answer(message) {
    const view = this.#views.get(message.id);
    return view instanceof AnswerView && view.message === message ? view : null;
  }

  /** @param {string} id */
  edit(id) {
    this.#views.get(id)?.edit()?.focus();
  }

  /** Moves the focus to the switch of a version that was chosen. @param {string} id @param {number} step */
  focusVersion(id, step) {
    const view = this.#views.get(id);
    if (view) focusVersion(view.node, step);
  }

  /** Scrolls to the hits of a search in a message, and marks them. @param {string} id @param {RegExp} pattern */
  reveal(id, pattern) {
    const view = this.#views.get(id);
    if (!view) return;
    view.draw();
    this.follow.release();
    showHits(view.node, pattern, this.follow.scroller);
  }
}
