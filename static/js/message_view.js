// What the views of questions and answers have in common: a frame that is filled when it comes near the window.
import { h } from "./dom.js";
import { readDraft } from "./drafts.js";

/** @import { Message, MessageActions } from "./types.js" */

export class MessageView {
  #isDrawn = false;
  siblings = /** @type {Message[]} */ ([]);

  /** @param {Message} message @param {MessageActions} actions @param {import("./dom.js").Props} attributes of the frame */
  constructor(message, actions, attributes) {
    this.message = message;
    this.actions = actions;
    this.node = h("article", attributes);
    this.node.addEventListener("contentvisibilityautostatechange", (event) => {
      if (!(/** @type {ContentVisibilityAutoStateChangeEvent} */ (event).skipped)) this.draw();
    });
  }

  /** Name of the draft of its editor. */
  get draft() {
    return `edit.${this.message.id}`;
  }

  /** Fills the frame; until then it is empty, so that a long conversation opens at once. */
  draw() {
    if (this.#isDrawn) return;
    this.#isDrawn = true;
    this.update(this.message);
    if (readDraft(this.draft)) this.edit();
  }

  /** Shows the present state of the message, or of a newer copy of it. @param {Message} message @param {Message[]} [siblings] */
  show(message, siblings = this.siblings) {
    const before = this.message;
    this.message = message;
    this.siblings = siblings;
    if (this.#isDrawn) this.update(before);
  }

  /** Draws the message. @param {Message} _before the copy of it that was drawn last */
  update(_before) {}

  /** Shows the editor in place of the text. */
  edit() {}
}
