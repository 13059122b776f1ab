// Drafts of texts that are not sent yet, in localStorage. Typing is not slowed down by storage: a draft is written at most once
// a second, and when the page is left.
import { readPref, writePref } from "./prefs.js";

const WRITE_INTERVAL_MS = 1000;
const MAX_DRAFT_BYTES = 65_536; // browsers store two bytes for each character and about 5 MB for a site

const pending = /** @type {Map<string, string>} */ (new Map());
let timer = 0;

/** @param {string} name @returns {string} */
export const readDraft = (name) => pending.get(name) ?? readPref(name, "");

/** Saves a draft soon; an empty one is removed at once. @param {string} name @param {string} text */
export function writeDraft(name, text) {
  pending.delete(name);
  if (!text) return writePref(name, null);
  pending.set(name, text);
  timer ||= window.setTimeout(flush, WRITE_INTERVAL_MS);
}

function flush() {
  clearTimeout(timer);
  timer = 0;
  // Half of a draft could be sent by mistake, so one that is too long is not kept at all.
  for (const [name, text] of pending) writePref(name, 2 * JSON.stringify(text).length <= MAX_DRAFT_BYTES ? text : null);
  pending.clear();
}

addEventListener("pagehide", flush);
document.addEventListener("visibilitychange", () => document.hidden && flush());
