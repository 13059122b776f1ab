// View of a user message: a bubble with its tools, and the editor that replaces it.
import { html, nothing, render } from "../vendor/lit/lit-html.js";
import { Editor } from "./editor.js";
import { openMenu } from "./menu.js";
import { MessageView } from "./message_view.js";
import { copy } from "./notices.js";
import { iconButton, summary } from "./templates.js";
import { versionSwitch } from "./versions.js";

/** @import { Message, MessageActions } from "./types.js" */

const SCROLL_CHARACTERS = 3000; // characters beyond which a bubble scrolls

export class UserView extends MessageView {
  #editor = /** @type {Editor | null} */ (null);

  /** @param {Message} message @param {MessageActions} actions */
  constructor(message, actions) {
    super(message, actions, { class: "message message-user", "aria-label": "You wrote", "data-role": "user" });
  }

  /** @override */
  update() {
    render(this.#editor ? this.#editor.node : this.#text(), this.node);
  }

  #text() {
    const { content, id, files = [] } = this.message;
    const isLong = content.length > SCROLL_CHARACTERS;
    const menu = [{ label: "Delete from here", icon: "trash", danger: true, run: () => this.actions.removeBranch(id) }];
    return html`${files.length ? html`<div class="message-files">${files.map(file)}</div>` : nothing}${
      content
        ? html`<div class="bubble ${isLong ? "long" : ""}" dir="auto" tabindex=${isLong ? "0" : nothing}
            role=${isLong ? "group" : nothing} aria-label=${isLong ? "Your message" : nothing} .textContent=${content}></div>`
        : nothing
    }<div class="tools">${versionSwitch(this.siblings, this.message, this.actions.choose)}${[
      iconButton("edit", "Edit and send again", () => this.edit()?.focus()),
      iconButton("copy", "Copy message", (button) => copy(content, button)),
      iconButton("more", "More", (button) => openMenu(button, menu)),
    ]}</div>`;
  }

  /** @override */
  edit() {
    this.draw();
    const { id, content } = this.message;
    this.#editor ??= new Editor({
      draft: this.draft,
      text: content,
      label: "Edit message",
      sendsByEnter: true,
      onCancel: () => {
        this.#editor = null;
        this.update();
        this.node.querySelector("button")?.focus();
      },
      actions: [["Send", (text) => this.actions.edit(id, text)]],
    });
    this.update();
    return this.#editor;
  }
}

/** Returns a file of a message, whose text can be unfolded. @param {import("./types.js").TextFile} file */
const file = ({ name, text }) =>
  html`<details class="fold">${summary(html`<span>${name}</span>`)}<pre class="fold-body">${text}</pre></details>`;
