// Note on the use of the context, shown only when the conversation, with the files of the next message, nears its length. It
// unfolds to the messages that would be left out if the next one did not fit.
import { html, nothing, render } from "../vendor/lit/lit-html.js";
import { messagesLeftOut } from "./context.js";
import { byId } from "./dom.js";

/** @import { Message } from "./types.js" */

const SHOWN_SHARE = 0.6; // of the context, from which on its use is shown
const MAX_LISTED = 20; // messages
const MAX_CHARACTERS = 120; // of a message

export class ContextNote {
  /** Context length of each model. @type {Record<string, number | undefined>} */
  lengths = {};
  #leftOut = /** @type {Message[] | null} */ (null); // null until they are known
  #shown = "";

  /**
   * @param {import("./chat.js").Chat} chat @param {import("./composer.js").Composer} composer
   * @param {import("./files.js").Files} files
   */
  constructor(chat, composer, files) {
    this.chat = chat;
    this.composer = composer;
    this.files = files;
    this.node = byId("context-note", HTMLDetailsElement);
    this.node.addEventListener("toggle", () => this.#list());
  }

  show() {
    const { id, messages } = this.chat.current;
    const shown = `${id} ${messages.length} ${this.files.list.length}`;
    if (shown !== this.#shown) this.node.open = false; // what it lists may have changed
    this.#shown = shown;
    this.#draw();
  }

  #draw() {
    const text = this.#text();
    this.node.hidden = !text;
    render([html`<summary>${text}</summary>`, this.node.open ? list(this.#leftOut) : nothing], this.node);
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

  async #list() {
    const { chat, composer, files } = this;
    const shown = this.#shown;
    this.#leftOut = null;
    this.#draw();
    if (!this.node.open) return;
    const next = { content: composer.text, files: files.list };
    const leftOut = await messagesLeftOut(chat.current, chat.tree.path, next);
    if (shown !== this.#shown) return;
    this.#leftOut = leftOut;
    this.#draw();
  }
}

/** @param {Message[] | null} leftOut */
function list(leftOut) {
  if (!leftOut) return html`<p>Counting tokens</p>`;
  if (!leftOut.length)
    return html`<p>No messages can be left out. Shorten the next one, or begin a new conversation.</p>`;
  const rest = leftOut.length - MAX_LISTED;
  return html`<p>If the next message does not fit, you can leave out the oldest ones:</p>
    <ol>
      ${leftOut
        .slice(0, MAX_LISTED)
        .map(
          ({ role, content, files = [] }) =>
            html`<li><b>${role === "user" ? "You" : "Answer"}</b> <bdi>${firstWords(content, files)}</bdi></li>`,
        )}
    </ol>
    ${rest > 0 ? html`<p>and ${rest} more</p>` : nothing}`;
}

/** @param {string} content @param {import("./types.js").TextFile[]} files */
const firstWords = (content, files) =>
  [...files.map(({ name }) => name), content.slice(0, MAX_CHARACTERS).replace(/\s+/g, " ")].filter(Boolean).join(", ");
