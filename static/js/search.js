// Search over conversations: an index of lower-case titles and texts, built once per revision, ahead of use.
import { whenIdle } from "./idle.js";
import { callsText } from "./tools.js";

/** @import { Conversation } from "./types.js" */

export class SearchIndex {
  #stop = () => {};
  #entries = /** @type {Map<string, { changes: number, length: number, title: string, text: string }>} */ (new Map());

  /** Returns the conversations that contain all words. @param {Conversation[]} list @param {string} query */
  find(list, query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return list;
    return list.filter((conversation) => {
      const text = this.#text(conversation);
      return words.every((word) => text.includes(word));
    });
  }

  /** Builds the index in portions while the browser is idle. @param {Conversation[]} list */
  prepare(list) {
    let at = 0;
    this.#stop();
    this.#stop = whenIdle(() => {
      if (at < list.length) this.#text(list[at++]);
      return at < list.length;
    });
  }

  /** @param {Conversation} conversation */
  #text({ id, changes = 0, title, messages }) {
    const known = this.#entries.get(id);
    const length = messages.at(-1)?.content.length ?? 0;
    if (known && known.changes === changes && known.length === length && known.title === title) return known.text;
    const text = [title, ...messages.flatMap((message) => [message.content, callsText(message)])]
      .join("\n")
      .toLowerCase();
    this.#entries.set(id, { changes, length, title, text });
    return text;
  }
}
