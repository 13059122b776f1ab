// Parser of text/event-stream: bytes in, events and comments out. Independent of chat and of network errors.
// EventSource can neither POST nor send a key nor expose comments, and this server sends status in comments.

/**
 * @typedef {{ kind: "event", id: string, event: string, data: string } | { kind: "comment", text: string }} Part
 */

const MAX_LINE_CHARACTERS = 16 * 1024 * 1024;

export class SseTooLong extends Error {}

export class SseParser {
  #decoder = new TextDecoder(); // stream mode keeps an incomplete UTF-8 character; a leading byte order mark is dropped
  #rest = "";
  #skipLineFeed = false; // the last chunk ended in CR: a LF at the start of the next one belongs to it
  #data = /** @type {string[]} */ ([]);
  #event = "";
  #id = "";

  /** @param {Uint8Array} bytes @returns {Part[]} */
  push(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (this.#skipLineFeed && text) {
      if (text[0] === "\n") text = text.slice(1);
      this.#skipLineFeed = false;
    }
    const parts = /** @type {Part[]} */ ([]);
    const end = /\r\n?|\n/g;
    let from = 0;
    for (let match = end.exec(text); match; match = end.exec(text)) {
      this.#line(this.#rest + text.slice(from, match.index), parts);
      this.#rest = "";
      from = end.lastIndex;
    }
    if (text.endsWith("\r")) this.#skipLineFeed = true;
    this.#rest += text.slice(from);
    if (this.#rest.length > MAX_LINE_CHARACTERS)
      throw new SseTooLong(`a line of more than ${MAX_LINE_CHARACTERS} characters`);
    return parts;
  }

  /** @param {string} line @param {Part[]} parts */
  #line(line, parts) {
    if (line === "") return this.#dispatch(parts);
    const colon = line.indexOf(":");
    if (colon === 0) return void parts.push({ kind: "comment", text: line.slice(1).trimStart() });
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#event = value;
    else if (field === "id" && !value.includes("\0")) this.#id = value;
  }

  /** @param {Part[]} parts */
  #dispatch(parts) {
    if (this.#data.length) {
      parts.push({ kind: "event", id: this.#id, event: this.#event || "message", data: this.#data.join("\n") });
    }
    this.#data = [];
    this.#event = "";
  }
}

export class Stalled extends Error {}

/**
 * Yields every part of a response's body. Throws Stalled after `stallMs` ms without any data (the server sends pings).
 * @param {Response} response
 * @param {number} stallMs
 * @returns {AsyncGenerator<Part, void, void>}
 */
export async function* readParts(response, stallMs) {
  const parser = new SseParser();
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  try {
    for (;;) {
      const { done, value } = await withTimeout(reader.read(), stallMs);
      if (done) return; // an incomplete event at the end of the stream is dropped, as the standard requires
      yield* parser.push(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** @template T @param {Promise<T>} promise @param {number} ms @returns {Promise<T>} */
function withTimeout(promise, ms) {
  let timer = 0;
  const late = new Promise((_, reject) => {
    timer = window.setTimeout(() => reject(new Stalled(`no data arrived for ${ms} ms`)), ms);
  });
  return /** @type {Promise<T>} */ (Promise.race([promise, late])).finally(() => clearTimeout(timer));
}
