// Conversations on the server, by key: rows that it lacks are sent, and rows of other browsers are joined.
import { ApiError, apiKey, getRows, sendRows } from "./api.js";
import { KEEPS_ROWS } from "./env.js";
import { readPref, writePref } from "./prefs.js";
import { joinRows, markSent, markUnsent, unsentRows } from "./shared_rows.js";

/** @import { SharedRow } from "./types.js" */

const POLL_MS = 30_000;
const WRITE_MS = 1000; // after a write, since others often follow
const MAX_VALUE = 1_000_000; // characters of a row
const MAX_BATCH = 1_000_000; // characters of a request
const TOO_LONG = "A message is too long for the server. It stays in this browser.";
const SHORT = 200; // characters, more than those of a deletion

export class Sync {
  #timer = 0;
  #isOn = false;
  #hasWarned = false;

  /**
   * @param {import("./store.js").Store} store
   * @param {{ changed(isOn: boolean): void, warn(text: string): void }} page
   */
  constructor(store, page) {
    this.store = store;
    this.page = page;
    store.onWrite = () => this.#isOn && this.#after(WRITE_MS);
    document.addEventListener("visibilitychange", () => document.hidden || !this.#isOn || this.#after(0));
  }

  /** Begins, or begins again with another key. */
  start() {
    this.#hasWarned = false;
    if (KEEPS_ROWS && apiKey()) this.#after(0);
    else this.#turn(false);
  }

  /** @param {number} ms */
  #after(ms) {
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => this.#round(), ms);
  }

  async #round() {
    const { database } = this.store;
    if (!database) return;
    try {
      // One tab does it for all; plain http has no locks, and there rows that are sent twice change nothing.
      const work = () => this.#exchange(database);
      await (navigator.locks ? navigator.locks.request("carousel.sync", work) : work());
      this.#turn(true);
    } catch (error) {
      const isRefused = error instanceof ApiError && error.status < 500 && error.status !== 429;
      if (isRefused) return this.#turn(false); // no store, or no key: until there is another one
    }
    if (!document.hidden) this.#after(POLL_MS);
  }

  /** @param {boolean} isOn */
  #turn(isOn) {
    this.#isOn = isOn;
    this.page.changed(isOn);
  }

  /** @param {IDBDatabase} database */
  async #exchange(database) {
    const known = readPref("sync", { epoch: "", after: 0 });
    for (let page; !page || page.has_more;) {
      page = await getRows(known.after);
      if (page.epoch !== known.epoch) {
        await markUnsent(database);
        Object.assign(known, { epoch: page.epoch, after: 0 });
        page.has_more = true;
        continue;
      }
      await this.store.replaced(await joinRows(database, page.data));
      known.after = page.last;
      writePref("sync", known);
    }
    for (let rows; (rows = await unsentRows(database)).length;) {
      const fitting = rows.filter(({ value }) => (value?.length ?? 0) <= MAX_VALUE);
      if (fitting.length < rows.length) this.#warn(TOO_LONG);
      // A full server still takes deletions, which are short, if nothing else is with them.
      const isShort = (/** @type {SharedRow} */ { value }) => (value?.length ?? 0) < SHORT;
      const sent = [...batches(fitting.filter(isShort)), ...batches(fitting.filter((row) => !isShort(row)))];
      for (const batch of sent) if (!(await this.#send(batch))) return;
      await markSent(database, rows);
    }
  }

  /**
   * Sends rows, in parts if they are too many bytes for a request. Returns false if the server is full. A row that is too
   * long by itself stays in this browser.
   * @param {SharedRow[]} rows @returns {Promise<boolean>}
   */
  async #send(rows) {
    try {
      await sendRows(rows);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 413) throw error;
      if (error.code === "page_rows_full") {
        this.#warn(`New messages stay in this browser: ${error.message}`);
        return false;
      }
      const half = Math.ceil(rows.length / 2);
      if (rows.length > 1) return (await this.#send(rows.slice(0, half))) && this.#send(rows.slice(half));
      this.#warn(TOO_LONG);
    }
    return true;
  }

  /** @param {string} text */
  #warn(text) {
    if (!this.#hasWarned) this.page.warn(text);
    this.#hasWarned = true;
  }
}

/** Divides rows into requests of a bounded size. @param {SharedRow[]} rows */
function batches(rows) {
  const found = /** @type {SharedRow[][]} */ ([]);
  let size = Infinity;
  for (const row of rows) {
    const length = (row.value?.length ?? 0) + row.id.length;
    if (size + length > MAX_BATCH) {
      found.push([]);
      size = 0;
    }
    found.at(-1)?.push(row);
    size += length;
  }
  return found;
}
