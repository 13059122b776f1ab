// Schema of the IndexedDB database: its tables, the upgrade from older versions, and promises for its requests.
// `conversations` has a small row per conversation, `messages` a row per message under [conversation, id].

/** @import { Conversation, Message } from "./types.js" */

export const CONVERSATIONS = "conversations";
export const MESSAGES = "messages";
const VERSION = 2;

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
  if (from === 1) splitRecords(/** @type {IDBTransaction} */ (request.transaction));
}

/** Version 1 kept a conversation as one record with all of its messages inside. @param {IDBTransaction} transaction */
function splitRecords(transaction) {
  const rows = transaction.objectStore(MESSAGES);
  const cursors = transaction.objectStore(CONVERSATIONS).openCursor();
  cursors.onsuccess = () => {
    const cursor = cursors.result;
    if (!cursor) return;
    const { messages = [], ...row } = /** @type {Omit<Conversation, "messages"> & { messages?: Message[] }} */ (
      cursor.value
    );
    cursor.update({ ...row, revision: 1, next: messages.length });
    messages.forEach((message, position) => rows.put({ ...message, conversation: row.id, position }));
    cursor.continue();
  };
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
