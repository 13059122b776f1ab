// Note on the use of the context, shown only when the conversation, with the files of the next message, nears its length.
import { byId } from "./dom.js";

const SHOWN_SHARE = 0.6; // of the context, from which on its use is shown

export class ContextNote {
  /** Context length of each model. @type {Record<string, number | undefined>} */
  lengths = {};

  /** @param {import("./chat.js").Chat} chat @param {import("./files.js").Files} files */
  constructor(chat, files) {
    this.chat = chat;
    this.files = files;
    this.node = byId("context-note");
  }

  show() {
    this.node.textContent = this.#text();
  }

  #text() {
    const { list } = this.files;
    const length = this.lengths[this.chat.current.model] ?? Infinity;
    const added = list.reduce((sum, { tokens = 0 }) => sum + tokens, 0);
    const used = added + (this.chat.tree.path.findLast((message) => message.usage)?.usage?.total_tokens ?? 0);
    if (added > length || list.some((file) => file.isTooLong)) return "The files are longer than the model's context";
    if (added > 0 && used > length) return "The oldest messages will not fit beside the files";
    return used > SHOWN_SHARE * length ? `${Math.round((used / length) * 100)} % of the context used` : "";
  }
}
