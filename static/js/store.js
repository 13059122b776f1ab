// Owns the conversations: all in memory, each written through to IndexedDB, other tabs told. Knows nothing about the page.
// A record is written whole, so an answer's text and the id of its last event always match and a resume never skips a word.

/**
 * @typedef {{ id: string, role: "user" | "assistant", content: string, created: number, thinking?: string,
 *   stage?: "thinking" | "answering" | "speaking", held?: string,
 *   state?: "streaming" | "done" | "stopped" | "error", stream?: string | null, last?: string | null, model?: string,
 *   sentAt?: number, firstAt?: number, lastAt?: number, pieces?: number, pausedMs?: number, resumed?: boolean, usage?: any, finish?: string,
 *   error?: { message: string, code?: string | null, status?: number } | null }} Message
 * @typedef {{ id: string, title: string, created: number, updated: number, system: string, model: string,
 *   sampling: Record<string, any>, messages: Message[] }} Conversation
 */

const TABLE = "conversations";

export class Store {
  #all = /** @type {Map<string, Conversation>} */ (new Map());
  #db = /** @type {IDBDatabase | null} */ (null);
  #channel = "BroadcastChannel" in window ? new BroadcastChannel("carousel") : null;
  #faulted = false;

  /**
   * @param {(reason: string) => void} onFault storage does not work; told once
   * @param {(id: string) => void} onForeignChange another tab wrote or removed this conversation
   */
  constructor(onFault, onForeignChange) {
    this.onFault = onFault;
    if (this.#channel) this.#channel.onmessage = ({ data }) => this.refresh(data).then(() => onForeignChange(data));
  }

  async open() {
    try {
      this.#db = await openDatabase();
      for (const record of await asPromise(this.#db.transaction(TABLE).objectStore(TABLE).getAll())) this.#all.set(record.id, record);
    } catch (error) {
      this.#fault(error);
    }
  }

  /** Newest first. */
  list() {
    return [...this.#all.values()].sort((a, b) => b.updated - a.updated);
  }

  /** @param {string} id */
  get(id) {
    return this.#all.get(id) ?? null;
  }

  /** @param {Conversation} conversation */
  put(conversation) {
    this.#all.set(conversation.id, conversation);
    return this.#write((table) => table.put(conversation), conversation.id);
  }

  /** @param {string} id */
  remove(id) {
    this.#all.delete(id);
    return this.#write((table) => table.delete(id), id);
  }

  async #write(change, id) {
    if (!this.#db) return;
    try {
      await asPromise(change(this.#db.transaction(TABLE, "readwrite").objectStore(TABLE)));
      this.#channel?.postMessage(id);
    } catch (error) {
      this.#fault(error);
    }
  }

  /** Reads one conversation anew: another tab may have written it. @param {string} id */
  async refresh(id) {
    if (!this.#db) return;
    const record = await asPromise(this.#db.transaction(TABLE).objectStore(TABLE).get(id)).catch(() => null);
    if (record) this.#all.set(id, record);
    else this.#all.delete(id);
  }

  #fault(error) {
    if (this.#faulted) return;
    this.#faulted = true;
    this.onFault(error instanceof Error ? error.message : String(error));
  }
}

/** @returns {Promise<IDBDatabase>} */
function openDatabase() {
  const request = indexedDB.open("carousel", 1);
  request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
  return asPromise(request);
}

/** @param {IDBRequest} request @returns {Promise<any>} */
const asPromise = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("storage refused"));
    // An open blocked by an older tab must not keep the page from starting.
    if ("onblocked" in request) request.onblocked = () => reject(new Error("storage is held by another tab"));
  });

/** Unlike randomUUID, getRandomValues also exists on plain http in a local network. */
export const newId = () => [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** The first line of what was asked, short enough for the list. @param {string} text */
export function titleFrom(text) {
  const line = text.trim().split("\n")[0].replace(/\s+/g, " ");
  const letters = [...line]; // not halves of a pair of surrogates
  return letters.length > 60 ? `${letters.slice(0, 57).join("").trimEnd()}…` : line || "Untitled";
}
