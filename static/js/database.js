// Schema of the IndexedDB database: its tables, the upgrade from older versions, and promises for its requests.
// `conversations` has a small row per conversation, `messages` a row per message under [conversation, id], and `choices` the
// branches that were read last.
import { writer } from "./ids.js";

/** @import { Conversation, Message } from "./types.js" */

export const CONVERSATIONS = "conversations";
export const MESSAGES = "messages";
export const CHOICES = "choices";
export const TABLES = [CONVERSATIONS, MESSAGES, CHOICES];
/** Tables whose rows other browsers have too, and their index of rows that the server lacks. */
export const SHARED = [CONVERSATIONS, MESSAGES];
export const UNSENT = "unsent";
const VERSION = 3;

/**
 * Message of a version whose conversations were lists.
 * @typedef {Message & { conversation: string, position: number }} ListedRow
 */

/**
 * Opens the database, after an upgrade if an older page created it.
 * @param {() => void} onOutdated called when a newer page needs the database and this connection has been closed
 * @returns {Promise<IDBDatabase>}
 */
export function openDatabase(onOutdated) {
  const request = indexedDB.open("carousel", VERSION);
  request.onupgradeneeded = ({ oldVersion }) => upgrade(request, oldVersion);
  return new Promise((resolve, reject) => {
    request.onerror = () => reject(request.error ?? new Error("storage refused"));
    // An open request that an older tab blocks must not prevent the page from starting.
    request.onblocked = () =>
      reject(new Error("another tab has an older version of this page open; close it and reload this one"));
    request.onsuccess = () => {
      const database = request.result;
      database.onversionchange = () => {
        database.close();
        onOutdated();
      };
      resolve(database);
    };
  });
}

/** @param {IDBOpenDBRequest} request @param {number} from old version; 0 without a database */
function upgrade(request, from) {
  if (from < 1) request.result.createObjectStore(CONVERSATIONS, { keyPath: "id" });
  if (from < 2) request.result.createObjectStore(MESSAGES, { keyPath: ["conversation", "id"] });
  request.result.createObjectStore(CHOICES, { keyPath: "id" });
  const transaction = /** @type {IDBTransaction} */ (request.transaction);
  for (const name of SHARED) transaction.objectStore(name).createIndex(UNSENT, UNSENT);
  if (from === 1) splitRecords(transaction);
  if (from === 2) linkLists(transaction);
}

/** Version 1 kept a conversation as one record with all of its messages inside. @param {IDBTransaction} transaction */
function splitRecords(transaction) {
  const rows = transaction.objectStore(MESSAGES);
  const cursors = transaction.objectStore(CONVERSATIONS).openCursor();
  cursors.onsuccess = () => {
    const cursor = cursors.result;
    if (!cursor) return;
    const { messages = [], ...row } = /** @type {Conversation} */ (cursor.value);
    cursor.update({ ...row, revision: 1, writer: writer(), unsent: 1, changes: 1 });
    link(row.id, messages, rows);
    cursor.continue();
  };
}

/** Version 2 kept the messages of a conversation in the order of their positions. @param {IDBTransaction} transaction */
function linkLists(transaction) {
  const rows = transaction.objectStore(MESSAGES);
  const cursors = transaction.objectStore(CONVERSATIONS).openCursor();
  cursors.onsuccess = () => {
    const cursor = cursors.result;
    if (!cursor) return;
    const { next: _, ...row } = cursor.value;
    cursor.update({ ...row, writer: writer(), unsent: 1, changes: row.revision });
    const listed = rows.getAll(messagesOf(row.id));
    listed.onsuccess = () => {
      const inOrder = /** @type {ListedRow[]} */ (listed.result).sort((a, b) => a.position - b.position);
      const bare = inOrder.map(({ position: _, ...message }) => message);
      link(row.id, bare, rows);
    };
    cursor.continue();
  };
}

/** Stores the messages of a list, each with the one before it as its parent.
 * @param {string} conversation @param {Message[]} messages @param {IDBObjectStore} rows */
function link(conversation, messages, rows) {
  const version = { revision: 1, writer: writer(), unsent: 1 };
  messages.forEach((message, i) =>
    rows.put({ ...message, conversation, parent: messages[i - 1]?.id ?? null, ...version }),
  );
}

/** Returns the key range of all messages of a conversation. @param {string} id */
export const messagesOf = (id) => IDBKeyRange.bound([id], [id, []]);

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
export const asPromise = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("storage refused"));
  });

/** Resolves when a transaction is committed. @param {IDBTransaction} transaction @returns {Promise<void>} */
export const committed = (transaction) =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onerror = transaction.onabort = () => reject(transaction.error ?? new Error("storage refused"));
  });
