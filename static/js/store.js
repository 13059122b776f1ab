// Store of conversations: all in memory, each change written through to IndexedDB, other tabs notified. Independent of the
// page. A write reads the stored row in the same transaction and changes only its own fields, so it never undoes the
// write of another tab; what is deleted leaves a tombstone, so a tab that missed the deletion cannot write it back.
import {
  asPromise,
  CHOICES,
  committed,
  CONVERSATIONS,
  MESSAGES,
  messagesOf,
  openDatabase,
  TABLES,
} from "./database.js";
import { bury, forget, next, put } from "./rows.js";

/** @import { ChoicesRow, Conversation, ConversationRow, Message, MessageRow, MessageTombstone, Tombstone } from "./types.js" */

/** @typedef {ConversationRow | Tombstone} Row */
/** @typedef {MessageRow | MessageTombstone} AnyMessageRow */

/**
 * Change of a conversation's own fields, applied to it in memory and to its row.
 * @typedef {(conversation: Omit<Conversation, "messages">) => void} Change
 */

export class Store {
  #all = /** @type {Map<string, Conversation>} */ (new Map());
  #db = /** @type {IDBDatabase | null} */ (null);
  #channel = "BroadcastChannel" in window ? new BroadcastChannel("carousel") : null;
  #hasFailed = false;
  // Number of started writes per conversation, by which a read detects that it is outdated
  #writes = /** @type {Map<string, number>} */ (new Map());
  /** Ids of the messages that this tab writes: their state in memory is newer than their row. */
  ownMessages = /** @type {Set<string>} */ (new Set());
  /** Called after each write of this tab. */
  onWrite = () => {};

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
      const transaction = this.#db.transaction(TABLES);
      const [rows, messages, choices] = /** @type {[Row[], AnyMessageRow[], ChoicesRow[]]} */ (
        await Promise.all(TABLES.map((name) => asPromise(transaction.objectStore(name).getAll())))
      );
      const groups = new Map(rows.map(({ id }) => [id, /** @type {AnyMessageRow[]} */ ([])]));
      for (const message of messages) groups.get(message.conversation)?.push(message);
      for (const row of rows) if (row.deleted === undefined) this.#load(row, groups.get(row.id) ?? []);
      for (const { id, chosen } of choices) Object.assign(this.#all.get(id) ?? {}, { chosen });
      forget(this.#db, rows);
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
   * Saves messages that are new, or that were deleted, in a conversation that may be new.
   * @param {Conversation} conversation @param {Message[]} added
   */
  append(conversation, added) {
    const isNew = !this.#all.has(conversation.id);
    return this.#add(conversation, added, (stored) => (stored ? stored.deleted === undefined : isNew));
  }

  /** Saves a conversation that was deleted or comes from a file. @param {Conversation} conversation */
  restore(conversation) {
    const saved = this.#add(conversation, conversation.messages, () => true);
    this.choose(conversation.id, conversation.chosen ?? {});
    return saved;
  }

  /**
   * @param {Conversation} conversation @param {Message[]} added
   * @param {(stored: Row | undefined) => boolean} isAllowed
   */
  #add(conversation, added, isAllowed) {
    const { messages: list, gone = {}, chosen: _, ...fields } = conversation;
    for (const message of added) {
      delete gone[message.id];
      if (!list.includes(message)) list.push(message);
    }
    this.#all.set(conversation.id, conversation);
    return this.#write(conversation.id, async (tables, row) => {
      if (!isAllowed(row)) return null;
      for (const message of added) await put(tables.messages, conversation.id, message);
      return row && row.deleted === undefined ? row : { ...fields, ...next(row), changes: row?.changes ?? 0 };
    });
  }

  /** Saves changed messages of a conversation. @param {Conversation} conversation @param {Message[]} changed */
  save({ id }, ...changed) {
    const now = changed.map((message) => ({ ...message }));
    return this.#write(
      id,
      async (tables, row) => {
        for (const message of now) if (!(await put(tables.messages, id, message, true))) return null;
        return row?.deleted === undefined ? (row ?? null) : null;
      },
      now.map((message) => message.id),
    );
  }

  /** Changes fields of a conversation, in memory and in its row. @param {string} id @param {Change} apply */
  change(id, apply) {
    const conversation = this.#all.get(id);
    if (!conversation) return Promise.resolve();
    apply(conversation);
    return this.#write(id, async (_, row) => {
      if (!row || row.deleted !== undefined) return null;
      apply(row);
      return { ...row, ...next(row) };
    });
  }

  /** Chooses branches, in this browser only: children by their parents. @param {string} id @param {Record<string, string>} chosen */
  choose(id, chosen) {
    const conversation = this.#all.get(id);
    if (!conversation) return;
    conversation.chosen = { ...conversation.chosen, ...chosen };
    const table = this.#db?.transaction(CHOICES, "readwrite").objectStore(CHOICES);
    table?.put({ id, chosen: conversation.chosen });
  }

  /** Deletes messages. @param {Conversation} conversation @param {Message[]} deleted */
  cut(conversation, deleted) {
    const ids = new Set(deleted.map(({ id }) => id));
    conversation.messages = conversation.messages.filter(({ id }) => !ids.has(id));
    conversation.gone = { ...conversation.gone, ...Object.fromEntries(deleted.map(({ id, parent }) => [id, parent])) };
    return this.#write(conversation.id, async (tables, row) => {
      for (const { id, parent } of deleted) await bury(tables.messages, conversation.id, id, parent);
      return row ?? null;
    });
  }

  /** Deletes a conversation and its messages. @param {string} id */
  remove(id) {
    this.#all.delete(id);
    return this.#write(id, async (tables, row) => {
      const stored = /** @type {AnyMessageRow[]} */ (await asPromise(tables.messages.getAll(messagesOf(id))));
      for (const message of stored) await bury(tables.messages, id, message.id, null);
      tables.choices.delete(id);
      return { id, deleted: Date.now(), ...next(row), changes: row?.changes ?? 0 };
    });
  }

  /** The database; null if storage does not work. */
  get database() {
    return this.#db;
  }

  /** Reads conversations again whose rows were replaced, in all tabs. @param {Iterable<string>} ids */
  async replaced(ids) {
    for (const id of ids) {
      await this.refresh({ id });
      this.#channel?.postMessage({ id });
    }
  }

  /**
   * Runs `change` on the stored row of a conversation in one transaction. It returns the row to store, or null if the row or
   * a message is gone: another tab has removed it, and memory is updated.
   * @param {string} id
   * @param {(tables: Record<string, IDBObjectStore>, row: Row | undefined) => Promise<Row | null>} change
   * @param {string[]} [messages] the only messages that it changes
   */
  async #write(id, change, messages) {
    if (!this.#db) return;
    this.#writes.set(id, (this.#writes.get(id) ?? 0) + 1);
    try {
      const transaction = this.#db.transaction(TABLES, "readwrite");
      const done = committed(transaction);
      done.catch(() => {}); // awaited below, unless the change itself fails first
      const tables = Object.fromEntries(TABLES.map((name) => [name, transaction.objectStore(name)]));
      const row = await change(tables, await asPromise(tables[CONVERSATIONS].get(id)));
      if (row) tables[CONVERSATIONS].put({ ...row, changes: row.changes + 1 });
      await done;
      if (!row) return this.refresh({ id });
      const conversation = this.#all.get(id);
      if (conversation) conversation.changes = row.changes + 1;
      this.#channel?.postMessage({ id, messages });
      this.onWrite();
    } catch (error) {
      this.#fail(error);
    }
  }

  /**
   * Reloads a conversation, or some messages of it.
   * @param {{ id: string, messages?: string[] }} changed @returns {Promise<void>}
   */
  async refresh({ id, messages = [] }) {
    if (!this.#db) return;
    const before = this.#writes.get(id);
    try {
      const transaction = this.#db.transaction(TABLES);
      const table = transaction.objectStore(MESSAGES);
      const held = new Map(this.#all.get(id)?.messages.map((message) => [message.id, message]));
      const isPart = messages.length > 0 && messages.every((one) => held.has(one));
      const [row, ...stored] = await Promise.all([
        asPromise(transaction.objectStore(CONVERSATIONS).get(id)),
        ...(isPart
          ? messages.map((one) => asPromise(table.get([id, one])))
          : [asPromise(table.getAll(messagesOf(id)))]),
      ]);
      if (this.#writes.get(id) !== before) return this.refresh({ id });
      if (!row || row.deleted !== undefined) this.#all.delete(id);
      else if (!isPart) this.#load(row, stored[0]);
      else
        this.#load(
          row,
          [...held.values()].map((one) => stored.find((now) => now?.id === one.id) ?? one),
        );
      this.onChangeElsewhere(id);
    } catch (error) {
      this.#fail(error);
    }
  }

  /**
   * Keeps the identity of the conversation object and of the messages that this tab writes.
   * @param {ConversationRow} row @param {(Message | AnyMessageRow)[]} stored
   */
  #load(row, stored) {
    const conversation = this.#all.get(row.id) ?? { ...row, messages: [] };
    const own = new Map(
      conversation.messages.filter(({ id }) => this.ownMessages.has(id)).map((message) => [message.id, message]),
    );
    const gone = { ...conversation.gone };
    const messages = /** @type {Message[]} */ ([]);
    for (const message of stored)
      if ("deleted" in message) gone[message.id] = message.parent;
      else messages.push(own.get(message.id) ?? message);
    for (const { id } of messages) delete gone[id];
    const updated = messages.reduce((at, { lastAt, created }) => Math.max(at, lastAt ?? created), row.updated);
    Object.assign(conversation, row, { messages, gone, updated });
    this.#all.set(row.id, conversation);
  }

  /** Reloads changed conversations, as a frozen tab may have missed notifications. */
  async #catchUp() {
    if (!this.#db) return;
    const table = this.#db.transaction(CONVERSATIONS).objectStore(CONVERSATIONS);
    const rows = /** @type {Row[]} */ (await asPromise(table.getAll()).catch(() => []));
    for (const { id, changes, deleted } of rows) {
      const known = this.#all.get(id);
      if (deleted ? known : known?.changes !== changes) this.refresh({ id });
    }
  }

  /** @param {unknown} error */
  #fail(error) {
    if (this.#hasFailed) return;
    this.#hasFailed = true;
    this.onFailure(error instanceof Error ? error.message : String(error));
  }
}
