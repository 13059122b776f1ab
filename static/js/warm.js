// Conversations whose next answer begins sooner, because an engine still has their tokens in its cache.
import { askWarm } from "./api.js";
import { Tree } from "./tree.js";

/** @import { Conversation, WarmRequest } from "./types.js" */

const POLL_MS = 30_000;
const MAX_ROWS = 100; // of one question
const MIN_SAVED_MS = 300;

export class Warm {
  /** Sentences by the ids of their conversations. */
  texts = /** @type {Map<string, string>} */ (new Map());
  #timer = 0;

  /** @param {{ rows(): Conversation[], changed(): void }} page its rows that are in view */
  constructor(page) {
    this.page = page;
    document.addEventListener("visibilitychange", () => this.ask());
  }

  /** Asks for the rows in view, and again from time to time, while the page is visible. */
  async ask() {
    clearTimeout(this.#timer);
    if (document.hidden) return;
    const timer = (this.#timer = window.setTimeout(() => this.ask(), POLL_MS));
    const rows = this.page.rows().slice(0, MAX_ROWS);
    const streams = new Map(rows.map((one) => [one.id, newestStream(one)]));
    const asked = [...new Set(streams.values())].filter(Boolean);
    // Without an answer, as while the server is started again, nothing is known to be warm.
    const found = /** @type {Record<string, WarmRequest>} */ (
      asked.length ? await askWarm(asked).catch(() => ({})) : {}
    );
    if (timer !== this.#timer) return; // a newer question
    const before = [...this.texts].join();
    this.texts.clear();
    for (const [id, stream] of streams) {
      const text = sentence(found[stream] ?? {});
      if (text) this.texts.set(id, text);
    }
    if ([...this.texts].join() !== before) this.page.changed();
  }
}

/** Returns the stream of the newest answer; empty if there is none. @param {Conversation} conversation */
const newestStream = (conversation) => new Tree(conversation).path.findLast((message) => message.stream)?.stream ?? "";

/** @param {Partial<WarmRequest>} request */
function sentence({ first_token_ms: warm = 0, cold_first_token_ms: cold = 0 }) {
  const isWorthAWord = cold - warm >= MIN_SAVED_MS && warm <= cold / 2;
  return isWorthAWord ? `Opens in ${seconds(warm)} instead of ${seconds(cold)}` : "";
}

/** @param {number} ms of an estimate */
const seconds = (ms) => `${ms < 9950 ? Math.max(0.1, ms / 1000).toFixed(1) : Math.round(ms / 1000)} s`;
