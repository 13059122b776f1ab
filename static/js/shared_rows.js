// Rows of the browser's database as the server keeps them, so that other browsers have them too.
import { asPromise, committed, CONVERSATIONS, MESSAGES, SHARED, UNSENT } from "./database.js";

/** @import { SharedRow, Version } from "./types.js" */

const MAX_SENT = 100; // rows of each table

/** Returns some rows that the server may lack. @param {IDBDatabase} database @returns {Promise<SharedRow[]>} */
export async function unsentRows(database) {
  const transaction = database.transaction(SHARED);
  const found = SHARED.map((name) => asPromise(transaction.objectStore(name).index(UNSENT).getAll(null, MAX_SENT)));
  return (await Promise.all(found)).flat().map(toShared);
}

/** Notes that the server has rows, unless they have changed since. @param {IDBDatabase} database @param {SharedRow[]} rows */
export async function markSent(database, rows) {
  await replace(database, rows, (row, stored) => (stored?.revision === row.revision ? stored : null));
}

/**
 * Takes rows of other browsers that are newer than those of this one. Returns the ids of their conversations.
 * @param {IDBDatabase} database @param {SharedRow[]} rows
 */
export const joinRows = (database, rows) =>
  replace(database, rows, (row, stored) => (isNewer(row, stored) ? fromShared(row, stored) : null));

/** Notes that the server lacks all rows, as it has lost them or keeps those of another key. @param {IDBDatabase} database */
export async function markUnsent(database) {
  const transaction = database.transaction(SHARED, "readwrite");
  const done = committed(transaction);
  for (const name of SHARED) {
    const table = transaction.objectStore(name);
    for (const row of await asPromise(table.getAll())) if (row.state !== "streaming") table.put({ ...row, unsent: 1 });
  }
  await done;
}

/**
 * Replaces stored rows in one transaction; the server has them. Returns the ids of their conversations.
 * @param {IDBDatabase} database @param {SharedRow[]} rows
 * @param {(row: SharedRow, stored: any) => any} choose returns the row to store, or null
 */
async function replace(database, rows, choose) {
  const transaction = database.transaction(SHARED, "readwrite");
  const done = committed(transaction);
  const changed = /** @type {Set<string>} */ (new Set());
  for (const row of rows) {
    if (!ID.test(row.id)) continue;
    const [kind, conversation, message] = row.id.split(".");
    const table = transaction.objectStore(kind === "c" ? CONVERSATIONS : MESSAGES);
    const stored = await asPromise(table.get(kind === "c" ? conversation : [conversation, message]));
    const chosen = choose(row, stored);
    if (!chosen) continue;
    table.put({ ...chosen, unsent: undefined });
    changed.add(conversation);
  }
  await done;
  return changed;
}

/** Ids of the server's rows: of a conversation, or of a message in a conversation. */
const ID = /^(c\.\w+|m\.\w+\.\w+)$/;

/** @param {SharedRow} row @param {Version | undefined} stored */
const isNewer = ({ revision, writer }, stored) =>
  !stored || revision > stored.revision || (revision === stored.revision && writer > stored.writer);

/** @param {any} row @returns {SharedRow} */
function toShared({ revision, writer, unsent: _, changes, ...fields }) {
  const id = changes === undefined ? `m.${fields.conversation}.${fields.id}` : `c.${fields.id}`;
  return { id, revision, writer, value: fields.deleted && !fields.parent ? null : JSON.stringify(fields) };
}

/**
 * Returns the row of the database; null if the page cannot have written it.
 * @param {SharedRow} row @param {any} stored
 */
function fromShared({ id, revision, writer, value }, stored) {
  const [kind, conversation, message] = id.split(".");
  const key = kind === "c" ? { id: conversation, changes: (stored?.changes ?? 0) + 1 } : { conversation, id: message };
  const version = { revision, writer };
  if (value === null) return { deleted: Date.now(), ...(kind === "c" ? {} : { parent: null }), ...version, ...key };
  try {
    const fields = JSON.parse(value);
    const isRow = kind === "c" ? isConversation(fields) : fields.deleted || isMessage(fields);
    return isRow ? { ...fields, ...version, ...key } : null;
  } catch {
    return null;
  }
}

/** @param {any} fields */
const isConversation = ({ title, system, sampling, created, updated }) =>
  [title, system].every((text) => typeof text === "string") &&
  [created, updated].every(Number.isFinite) &&
  typeof sampling === "object";

/** @param {any} fields */
const isMessage = ({ role, content, created }) =>
  (role === "user" || role === "assistant") && typeof content === "string" && Number.isFinite(created);
