// Column of messages of the open conversation: its views and their messages.
import { byId, h } from "./dom.js";
import { EXAMPLES } from "./env.js";
import { showHits } from "./hits.js";
import { whenIdle } from "./idle.js";
import { AnswerView } from "./messages.js";
import { UserView } from "./question.js";
import { AutoScroll } from "./scroll.js";

/** @import { Message } from "./types.js" */

const DRAWN_AT_ONCE = 12; // messages at the end of a conversation that are drawn when it is opened; more than a screen

export class Thread {
  #stopDrawing = () => {};
  #views = /** @type {Map<string, AnswerView | UserView>} */ (new Map());

  /** @param {import("./messages.js").Actions & { send(text: string): void }} actions */
  constructor(actions) {
    this.actions = actions;
    this.node = byId("thread");
    this.empty = byId("empty");
    this.follow = new AutoScroll(byId("scroller"), this.node, byId("jump"));
    byId("examples").append(
      ...EXAMPLES.map((text) =>
        h("li", {}, h("button", { class: "example", type: "button", onclick: () => actions.send(text) }, text)),
      ),
    );
  }

  /** @param {Message[]} messages @param {string} [first] the first message that is sent, if older ones are left out */
  show(messages, first) {
    this.#views.clear();
    this.node.replaceChildren();
    const views = messages.map((message, i) => this.#add(message, i < messages.length - DRAWN_AT_ONCE));
    this.#drawWhenIdle(views.filter((view) => view instanceof AnswerView));
    this.markFirst(first);
    this.#showEmpty();
    this.follow.open(messages.length > 0);
  }

  /** Draws the line above the first sent message. @param {string} [first] */
  markFirst(first = "") {
    this.node.querySelector(".left-out")?.remove();
    this.#views.get(first)?.node.before(h("p", { class: "left-out" }, "The model no longer sees the messages above."));
  }

  /**
   * Updates the conversation after a change by another tab: adds text and messages, or redraws all if others changed.
   * @param {Message[]} messages @param {string} [first]
   */
  sync(messages, first) {
    const views = [...this.#views.values()];
    const grown = messages.length >= views.length && views.every((view, i) => view.adopt(messages[i]));
    if (!grown) return this.show(messages, first);
    for (const message of messages.slice(views.length)) this.append(message);
    this.markFirst(first);
  }

  /** @param {Message} message */
  append(message) {
    this.#add(message, false);
    this.#showEmpty();
  }

  /** @param {Message} message @param {boolean} later */
  #add(message, later) {
    const view =
      message.role === "user" ? new UserView(message, this.actions) : new AnswerView(message, this.actions, later);
    this.#views.set(message.id, view);
    this.node.append(view.node);
    return view;
  }

  /**
   * Draws the texts of older answers while idle, newest first: all at once would block the page, and the browser's
   * search needs them.
   * @param {AnswerView[]} views
   */
  #drawWhenIdle(views) {
    this.#stopDrawing();
    this.#stopDrawing = whenIdle(() => {
      views.pop()?.draw();
      return views.length > 0;
    });
  }

  /** Draws the answers that the browser was not idle for, since all of them are printed. */
  drawAll() {
    for (const view of this.#views.values()) if (view instanceof AnswerView) view.draw();
  }

  /** @param {Message} message @returns {AnswerView | null} */
  answer(message) {
    const view = this.#views.get(message.id);
    return view instanceof AnswerView && view.message === message ? view : null;
  }

  /** @param {string} id */
  edit(id) {
    const view = this.#views.get(id);
    if (view instanceof UserView) view.edit();
  }

  /** Scrolls to the hits of a search in a message, and marks them. @param {string} id @param {RegExp} pattern */
  reveal(id, pattern) {
    const view = this.#views.get(id);
    if (!view) return;
    if (view instanceof AnswerView) view.draw();
    this.follow.release();
    showHits(view.node, pattern, this.follow.scroller);
  }

  #showEmpty() {
    this.empty.hidden = this.#views.size > 0;
    this.node.hidden = this.#views.size === 0;
  }
}
