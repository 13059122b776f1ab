// Writes of single rows into the browser's database, each in a version after the stored one.
import { asPromise, MESSAGES, CONVERSATIONS, messagesOf } from "./database.js";
import { writer } from "./ids.js";

/** @import { ConversationRow, Message, MessageRow, MessageTombstone, Tombstone, Version } from "./types.js" */

const TOMBSTONE_MS = 90 * 86_400_000; // longer than a tab that missed the deletion stays open

/** Returns the version after a stored row, which the server lacks. @param {Version | undefined} row @returns {Version} */
export const next = (row) => ({ revision: (row?.revision ?? 0) + 1, writer: writer(), unsent: 1 });

/**
 * Stores a message; with `onlyIfPresent` returns false if it is absent or deleted.
 * @param {IDBObjectStore} table @param {string} conversation @param {Message} message @param {boolean} [onlyIfPresent]
 */
export async function put(table, conversation, message, onlyIfPresent = false) {
  const stored = /** @type {MessageRow | MessageTombstone | undefined} */ (
    await asPromise(table.get([conversation, message.id]))
  );
  if (onlyIfPresent && (!stored || stored.deleted !== undefined)) return false;
  const { unsent, ...version } = next(stored);
  // An answer is sent to the server when it has ended.
  table.put({ ...message, conversation, ...version, unsent: message.state === "streaming" ? undefined : unsent });
  return true;
}

/**
 * Replaces a message by a tombstone. Its parent stays for what may follow it.
 * @param {IDBObjectStore} table @param {string} conversation @param {string} id @param {string | null} parent
 */
export async function bury(table, conversation, id, parent) {
  const stored = /** @type {MessageRow | MessageTombstone | undefined} */ (
    await asPromise(table.get([conversation, id]))
  );
  if (!stored || stored.deleted !== undefined) return;
  table.put({ id, conversation, parent, deleted: Date.now(), ...next(stored) });
}

/** Removes the tombstones of conversations that were deleted long ago. @param {IDBDatabase} database @param {(ConversationRow | Tombstone)[]} rows */
export function forget(database, rows) {
  const old = rows.filter(({ deleted }) => deleted && deleted < Date.now() - TOMBSTONE_MS);
  const transaction = old.length ? database.transaction([CONVERSATIONS, MESSAGES], "readwrite") : null;
  for (const { id } of old) {
    transaction?.objectStore(CONVERSATIONS).delete(id);
    transaction?.objectStore(MESSAGES).delete(messagesOf(id));
  }
}
