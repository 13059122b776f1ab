// Store of conversations: all in memory, each change written through to IndexedDB, other tabs notified. Independent of the
// page. A write reads the stored row in the same transaction and changes only its own fields, so it never undoes the
// write of another tab; a deleted conversation leaves a tombstone, so a tab that missed the deletion cannot write it back.
import { asPromise, committed, CONVERSATIONS, MESSAGES, messagesOf, openDatabase } from "./database.js";

/** @import { Conversation, ConversationRow, Message, MessageRow, Tombstone } from "./types.js" */

/** @typedef {ConversationRow | Tombstone} Row */

/**
 * Change of a conversation's own fields, applied to it in memory and to its row.
 * @typedef {(conversation: Omit<Conversation, "messages">) => void} Change
 */

const TOMBSTONE_MS = 90 * 86_400_000; // longer than a tab that missed the deletion stays open

export class Store {
  #all = /** @type {Map<string, Conversation>} */ (new Map());
  #db = /** @type {IDBDatabase | null} */ (null);
  #channel = "BroadcastChannel" in window ? new BroadcastChannel("carousel") : null;
  #hasFailed = false;
  // Number of started writes per conversation, by which a read detects that it is outdated
  #writes = /** @type {Map<string, number>} */ (new Map());
  /** Ids of the messages that this tab writes: their state in memory is newer than their row. */
  ownMessages = /** @type {Set<string>} */ (new Set());

  /**
   * @param {(reason: string) => void} onFailure called once if storage does not work
   * @param {(id: string) => void} onChangeElsewhere called after another tab changed or deleted this conversation, with memory up to date
   */
  constructor(onFailure, onChangeElsewhere) {
    this.onFailure = onFailure;
    this.onChangeElsewhere = onChangeElsewhere;
    if (this.#channel) this.#channel.onmessage = ({ data }) => this.refresh(data);
    document.addEventListener("visibilitychange", () => document.hidden || this.#catchUp());
  }

  async open() {
    try {
      this.#db = await openDatabase(() =>
        this.#fail(new Error("a newer version of this page is open in another tab; reload this one")),
      );
      const transaction = this.#db.transaction([CONVERSATIONS, MESSAGES]);
      const [rows, messages] = /** @type {[Row[], MessageRow[]]} */ (
        await Promise.all([CONVERSATIONS, MESSAGES].map((name) => asPromise(transaction.objectStore(name).getAll())))
      );
      const groups = new Map(rows.map(({ id }) => [id, /** @type {MessageRow[]} */ ([])]));
      for (const message of messages) groups.get(message.conversation)?.push(message);
      for (const row of rows)
        if (row.deleted === undefined) this.#all.set(row.id, { ...row, messages: inOrder(groups.get(row.id) ?? []) });
      this.#forget(rows.filter(({ deleted }) => deleted && deleted < Date.now() - TOMBSTONE_MS));
    } catch (error) {
      this.#fail(error);
    }
  }

  /** All conversations, newest first. */
  list() {
    return [...this.#all.values()].sort((a, b) => b.updated - a.updated);
  }

  /** @param {string} id */
  get(id) {
    return this.#all.get(id) ?? null;
  }

  /**
   * Saves messages that were appended to a conversation, which may be new.
   * @param {Conversation} conversation @param {Message[]} added
   */
  append(conversation, added) {
    const isNew = !this.#all.has(conversation.id);
    this.#all.set(conversation.id, conversation);
    const { messages: _, ...fields } = conversation;
    return this.#write(conversation.id, async (conversations, messages, stored) => {
      if (stored ? stored.deleted !== undefined : !isNew) return false;
      const row = /** @type {ConversationRow} */ (stored ?? { ...fields, revision: 0, next: 0 });
      for (const message of added) messages.put({ ...message, conversation: row.id, position: row.next++ });
      conversations.put({ ...row, updated: fields.updated, revision: row.revision + 1 });
      return true;
    });
  }

  /** Saves a changed message. @param {Conversation} conversation @param {Message} message */
  save({ id, updated }, message) {
    const now = { ...message };
    return this.#write(
      id,
      async (conversations, messages, row) => {
        const stored = await asPromise(messages.get([id, message.id]));
        if (!row || row.deleted !== undefined || !stored) return false;
        messages.put({ ...now, conversation: id, position: stored.position });
        conversations.put({ ...row, updated: Math.max(row.updated, updated), revision: row.revision + 1 });
        return true;
      },
      message.id,
    );
  }

  /** Changes fields of a conversation, in memory and in its row. @param {string} id @param {Change} apply */
  change(id, apply) {
    const conversation = this.#all.get(id);
    if (!conversation) return Promise.resolve();
    apply(conversation);
    return this.#write(id, async (conversations, _, row) => {
      if (!row || row.deleted !== undefined) return false;
      apply(row);
      conversations.put({ ...row, revision: row.revision + 1 });
      return true;
    });
  }

  /** Removes a message and all that follow it. @param {string} id @param {string} from */
  cut(id, from) {
    const conversation = this.#all.get(id);
    if (!conversation) return Promise.resolve();
    conversation.messages.splice(conversation.messages.findIndex((message) => message.id === from));
    return this.#write(id, async (conversations, messages, row) => {
      const stored = await asPromise(messages.getAll(messagesOf(id)));
      const first = stored.find((message) => message.id === from);
      if (!row || row.deleted !== undefined || !first) return false;
      for (const message of stored) if (message.position >= first.position) messages.delete([id, message.id]);
      conversations.put({ ...row, revision: row.revision + 1 });
      return true;
    });
  }

  /** Deletes a conversation: removes its messages and replaces its row with a tombstone. @param {string} id */
  remove(id) {
    this.#all.delete(id);
    return this.#write(id, async (conversations, messages, row) => {
      messages.delete(messagesOf(id));
      conversations.put({ id, deleted: Date.now(), revision: (row?.revision ?? 0) + 1 });
      return true;
    });
  }

  /** Undoes a deletion or a cut: saves all messages of the conversation again. @param {Conversation} conversation */
  restore(conversation) {
    const { messages: list, ...fields } = conversation;
    this.#all.set(conversation.id, conversation);
    return this.#write(conversation.id, async (conversations, messages, row) => {
      const kept = row && row.deleted === undefined ? row : fields;
      messages.delete(messagesOf(conversation.id));
      list.forEach((message, position) => messages.put({ ...message, conversation: conversation.id, position }));
      conversations.put({ ...kept, next: list.length, revision: (row?.revision ?? 0) + 1 });
      return true;
    });
  }

  /**
   * Runs `change` on the stored row of a conversation in one transaction. It returns false if the row or message is gone:
   * another tab has removed it, and memory is updated.
   * @param {string} id
   * @param {(conversations: IDBObjectStore, messages: IDBObjectStore, row: Row | undefined) => Promise<boolean>} change
   * @param {string} [message] the only message that it changes
   */
  async #write(id, change, message) {
    if (!this.#db) return;
    this.#writes.set(id, (this.#writes.get(id) ?? 0) + 1);
    try {
      const transaction = this.#db.transaction([CONVERSATIONS, MESSAGES], "readwrite");
      const done = committed(transaction);
      done.catch(() => {}); // awaited below, unless the change itself fails first
      const conversations = transaction.objectStore(CONVERSATIONS);
      const row = /** @type {Row | undefined} */ (await asPromise(conversations.get(id)));
      const isKept = await change(conversations, transaction.objectStore(MESSAGES), row);
      await done;
      if (!isKept) return this.refresh({ id });
      const conversation = this.#all.get(id);
      if (conversation) conversation.revision = (row?.revision ?? 0) + 1;
      this.#channel?.postMessage({ id, message });
    } catch (error) {
      this.#fail(error);
    }
  }

  /**
   * Reloads a conversation, or one message of it.
   * @param {{ id: string, message?: string }} changed @returns {Promise<void>}
   */
  async refresh({ id, message }) {
    if (!this.#db) return;
    const before = this.#writes.get(id);
    try {
      const transaction = this.#db.transaction([CONVERSATIONS, MESSAGES]);
      const messages = transaction.objectStore(MESSAGES);
      const held = this.#all.get(id)?.messages.some((one) => one.id === message);
      const read = held && message ? messages.get([id, message]) : messages.getAll(messagesOf(id));
      const [row, stored] = await Promise.all([
        asPromise(transaction.objectStore(CONVERSATIONS).get(id)),
        asPromise(read),
      ]);
      if (this.#writes.get(id) !== before) return this.refresh({ id });
      if (!row || row.deleted !== undefined) this.#all.delete(id);
      else if (Array.isArray(stored)) this.#merge(row, inOrder(stored));
      else
        this.#merge(row, this.#all.get(id)?.messages.map((one) => (one.id === message && stored ? stored : one)) ?? []);
      this.onChangeElsewhere(id);
    } catch (error) {
      this.#fail(error);
    }
  }

  /**
   * Keeps the identity of the conversation object and of the messages that this tab writes.
   * @param {ConversationRow} row @param {Message[]} messages
   */
  #merge(row, messages) {
    const conversation = this.#all.get(row.id) ?? { ...row, messages: [] };
    const own = new Map(
      conversation.messages.filter(({ id }) => this.ownMessages.has(id)).map((message) => [message.id, message]),
    );
    Object.assign(conversation, row, { messages: messages.map((message) => own.get(message.id) ?? message) });
    this.#all.set(row.id, conversation);
  }

  /** Reloads changed conversations by their revisions, as a frozen tab may have missed notifications. */
  async #catchUp() {
    if (!this.#db) return;
    const table = this.#db.transaction(CONVERSATIONS).objectStore(CONVERSATIONS);
    const rows = /** @type {Row[]} */ (await asPromise(table.getAll()).catch(() => []));
    for (const { id, revision, deleted } of rows) {
      const known = this.#all.get(id);
      if (deleted ? known : known?.revision !== revision) this.refresh({ id });
    }
  }

  /** @param {Row[]} rows */
  #forget(rows) {
    const table = rows.length ? this.#db?.transaction(CONVERSATIONS, "readwrite").objectStore(CONVERSATIONS) : null;
    for (const { id } of rows) table?.delete(id);
  }

  /** @param {unknown} error */
  #fail(error) {
    if (this.#hasFailed) return;
    this.#hasFailed = true;
    this.onFailure(error instanceof Error ? error.message : String(error));
  }
}

/** @param {MessageRow[]} rows */
const inOrder = (rows) => rows.sort((a, b) => a.position - b.position);

/**
 * Returns the first line of a question; the list and the top bar truncate it to their width.
 * @param {string} text @param {number} [maximum] characters
 */
export function titleFrom(text, maximum = 160) {
  const line = text.trim().split("\n")[0].replace(/\s+/g, " ");
  const letters = [...line]; // does not split surrogate pairs
  return letters.length > maximum
    ? `${letters
        .slice(0, maximum - 1)
        .join("")
        .trimEnd()}…`
    : line || "Untitled";
}
