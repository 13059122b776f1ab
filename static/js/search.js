// Search over conversations: an index of lower-case titles and texts, built once per change, ahead of use.
import { whenIdle } from "./idle.js";
import { callsText, contentOf } from "./tools.js";

/** @import { Conversation, Message } from "./types.js" */

/**
 * Line of a message around the first hit: `parts` alternates between other text and hits.
 * @typedef {{ message: string, parts: string[] }} Excerpt
 * @typedef {{ changes: number, length: number, title: string, text: string, starts: number[] }} Entry
 */

const LEAD = 24; // characters before a hit: a narrow list shows the hit too
const MAX_CHARACTERS = 160; // of an excerpt

/** @param {string} query */
const wordsOf = (query) => query.toLowerCase().split(/\s+/).filter(Boolean);

/** Returns a pattern of the words of a query that is not empty; its only group is the hit. @param {string} query */
export function hitPattern(query) {
  const words = wordsOf(query).sort((a, b) => b.length - a.length);
  return new RegExp(`(${words.map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|")})`, "giu");
}

export class SearchIndex {
  #stop = () => {};
  #entries = /** @type {Map<string, Entry>} */ (new Map());

  /** Returns the conversations that contain all words. @param {Conversation[]} list @param {string} query */
  find(list, query) {
    const words = wordsOf(query);
    if (!words.length) return list;
    return list.filter((conversation) => {
      const { text } = this.#entry(conversation);
      return words.every((word) => text.includes(word));
    });
  }

  /**
   * Returns the excerpt of a conversation that was found; null if only its title has the words.
   * @param {Conversation} conversation @param {string} query @param {RegExp} [pattern] that of the query
   * @returns {Excerpt | null}
   */
  excerpt(conversation, query, pattern = hitPattern(query)) {
    const { text, starts } = this.#entry(conversation);
    const places = wordsOf(query).map((word) => text.indexOf(word, starts[0] ?? text.length));
    const at = Math.min(...places.filter((place) => place >= 0));
    const index = starts.findLastIndex((start) => start <= at);
    if (at === Infinity || index < 0) return null;
    const message = conversation.messages[index];
    const whole = textOf(message);
    const lower = text.slice(starts[index], (starts[index + 1] ?? text.length + 1) - 1);
    const source = whole.length === lower.length ? whole : lower; // a few letters have a longer lower case
    const line = lineAround(source, at - starts[index]);
    return { message: message.id, parts: line.split(pattern) };
  }

  /** Builds the index in portions while the browser is idle. @param {Conversation[]} list */
  prepare(list) {
    let at = 0;
    this.#stop();
    this.#stop = whenIdle(() => {
      if (at < list.length) this.#entry(list[at++]);
      return at < list.length;
    });
  }

  /** @param {Conversation} conversation @returns {Entry} */
  #entry({ id, changes = 0, title, messages }) {
    const known = this.#entries.get(id);
    const length = messages.at(-1)?.content.length ?? 0;
    if (known && known.changes === changes && known.length === length && known.title === title) return known;
    const texts = [title, ...messages.map(textOf)].map((text) => text.toLowerCase());
    let end = 0;
    const starts = texts.map((text) => (end += text.length + 1)).slice(0, -1);
    const entry = { changes, length, title, text: texts.join("\n"), starts };
    this.#entries.set(id, entry);
    return entry;
  }
}

/** @param {Message} message */
const textOf = (message) => [contentOf(message), callsText(message)].filter(Boolean).join("\n");

/** Returns the text around a place in one line. @param {string} text @param {number} at */
function lineAround(text, at) {
  const space = text.slice(Math.max(0, at - LEAD), at).search(/\s/);
  const from = at <= LEAD ? 0 : at - LEAD + space + 1;
  return (from ? "…" : "") + text.slice(from, from + MAX_CHARACTERS).replace(/\s+/g, " ");
}
