// Keyboard shortcuts outside of fields. main.js provides the actions.
import { readPref } from "./prefs.js";

/** @typedef {{ stop(): boolean, search(): void, create(): void, settings(): void, help(): void, write(): void }} KeyActions */

/** @param {KeyActions} actions */
export function setUpKeys(actions) {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing) return;
    // They handle Esc and other keys themselves
    if (document.querySelector("dialog[open], [popover]:popover-open")) return;
    const run = chosen(event, actions);
    if (!run) return;
    if (run() !== false) event.preventDefault();
  });
}

/** @param {KeyboardEvent} event @param {KeyActions} actions @returns {(() => boolean | void) | null} */
function chosen(event, actions) {
  const mod = event.metaKey || event.ctrlKey;
  const key = event.key.toLowerCase();
  if (key === "escape") return () => actions.stop();
  if (mod && !event.altKey) {
    if (key === "k") return () => actions.search();
    if (key === "o" && event.shiftKey) return () => actions.create();
    if (key === ",") return () => actions.settings();
    return null;
  }
  // Single keys work only outside of text fields, and only if the user has enabled them.
  if (
    event.altKey ||
    (event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable]")) ||
    !readPref("single-keys", true)
  )
    return null;
  if (key === "?") return () => actions.help();
  if (key === "/") return () => actions.write();
  return null;
}
