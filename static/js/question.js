// DOM of a user message: a bubble with its tools, and the editor that replaces it.
import { foldSummary } from "./calls.js";
import { h, iconButton } from "./dom.js";
import { readDraft } from "./drafts.js";
import { Editor } from "./editor.js";
import { openMenu } from "./menu.js";
import { copy } from "./notices.js";
import { VersionSwitch } from "./versions.js";

/** @import { Message, MessageActions } from "./types.js" */

const SCROLL_CHARACTERS = 3000; // characters beyond which a bubble scrolls

export class UserView {
  /** @param {Message} message @param {MessageActions} actions */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.versions = new VersionSwitch(actions.choose);
    this.node = h("article", { class: "message message-user", "aria-label": "You wrote", "data-role": "user" });
    if (readDraft(this.#draft)) this.#showEditor();
    else this.#showText();
  }

  get #draft() {
    return `edit.${this.message.id}`;
  }

  /** @param {Message} message */
  show(message) {
    this.message = message;
  }

  #showText() {
    const { content, id } = this.message;
    const isLong = content.length > SCROLL_CHARACTERS;
    const scrolls = isLong ? { tabindex: "0", role: "group", "aria-label": "Your message" } : {};
    this.node.replaceChildren(
      filesOf(this.message),
      h("div", { hidden: !content, class: `bubble${isLong ? " long" : ""}`, dir: "auto", ...scrolls }, content),
      h(
        "div",
        { class: "tools" },
        this.versions.node,
        iconButton("edit", "Edit and send again", () => this.edit()),
        iconButton("copy", "Copy message", (button) => copy(content, button)),
        iconButton("more", "More", (button) =>
          openMenu(button, [
            {
              label: "Delete from here",
              icon: "trash",
              danger: true,
              run: () => this.actions.removeBranch(id),
            },
          ]),
        ),
      ),
    );
  }

  edit() {
    this.#showEditor().focus();
  }

  #showEditor() {
    const { id, content } = this.message;
    const editor = new Editor({
      draft: this.#draft,
      text: content,
      label: "Edit message",
      sendsByEnter: true,
      onCancel: () => {
        this.#showText();
        this.node.querySelector("button")?.focus();
      },
      actions: [["Send", (text) => this.actions.edit(id, text)]],
    });
    this.node.replaceChildren(editor.node);
    return editor;
  }
}

/** Returns the files of a message, whose texts can be unfolded. @param {Message} message */
function filesOf({ files = [] }) {
  const node = h("div", { class: "message-files", hidden: !files.length });
  for (const { name, text } of files)
    node.append(
      h("details", { class: "fold" }, foldSummary(h("span", {}, name)), h("pre", { class: "fold-body" }, text)),
    );
  return node;
}
