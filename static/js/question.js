// DOM of a user message: a bubble with its tools, and the editor that replaces it.
import { h, iconButton } from "./dom.js";
import { readDraft, writeDraft } from "./drafts.js";
import { copy } from "./notices.js";

/** @import { Message } from "./types.js" */

const SCROLL_CHARACTERS = 3000; // characters beyond which a bubble scrolls

/**
 * @typedef {import("./messages.js").Actions} Actions
 */

export class UserView {
  /** @param {Message} message @param {Actions} actions */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.node = h("article", { class: "message message-user", "aria-label": "You wrote", "data-role": "user" });
    if (this.#draft) this.#showEditor();
    else this.show();
  }

  /** Text of an edit that is neither sent nor cancelled; kept while another conversation is shown. */
  get #draft() {
    return readDraft(`edit.${this.message.id}`);
  }

  set #draft(text) {
    writeDraft(`edit.${this.message.id}`, text);
  }

  show() {
    const { content } = this.message;
    const scrolls =
      content.length > SCROLL_CHARACTERS ? { tabindex: "0", role: "group", "aria-label": "Your message" } : {};
    this.node.replaceChildren(
      h(
        "div",
        { class: `bubble${content.length > SCROLL_CHARACTERS ? " long" : ""}`, dir: "auto", ...scrolls },
        content,
      ),
      h(
        "div",
        { class: "tools" },
        iconButton("edit", "Edit and send again", () => this.edit()),
        iconButton("copy", "Copy message", (button) => copy(this.message.content, button)),
      ),
    );
  }

  /** Adopts a newer copy of the message if its text is the same; returns whether it did. @param {Message} message */
  adopt(message) {
    const same = message.id === this.message.id && message.content === this.message.content;
    if (same) this.message = message;
    return same;
  }

  edit() {
    const area = this.#showEditor();
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }

  #showEditor() {
    const area = h("textarea", { "aria-label": "Edit message", rows: "1", dir: "auto" });
    area.value = this.#draft || this.message.content;
    const size = () => {
      area.style.setProperty("height", "auto");
      area.style.setProperty("height", `${area.scrollHeight}px`);
    };
    const cancel = () => {
      this.#draft = "";
      this.show();
      this.node.querySelector("button")?.focus();
    };
    const send = () => area.value.trim() && this.actions.edit(this.message.id, area.value) && (this.#draft = "");
    area.addEventListener("input", () => {
      this.#draft = area.value;
      size();
    });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        cancel();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
        event.preventDefault();
        send();
      }
    });
    this.node.replaceChildren(
      h(
        "div",
        { class: "edit" },
        area,
        h(
          "div",
          { class: "edit-foot" },
          h("button", { class: "button small quiet", type: "button", onclick: cancel }, "Cancel"),
          h("button", { class: "button small primary", type: "button", onclick: send }, "Send"),
        ),
      ),
    );
    requestAnimationFrame(size); // once it is in the page
    return area;
  }
}
