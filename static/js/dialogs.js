// Help dialog and API key dialog.
import { apiKey, setApiKey } from "./api.js";
import { byId, h } from "./dom.js";
import { MAC } from "./env.js";
import { readPref, writePref } from "./prefs.js";

const MOD = MAC ? "⌘" : "Ctrl";
const KEYS = [
  ["Send", ["Enter"]],
  ["New line", ["Shift", "Enter"]],
  ["Stop the answer", ["Esc"]],
  ["Search conversations", [MOD, "K"]],
  ["New conversation", [MOD, "Shift", "O"]],
  ["Settings", [MOD, ","]],
  ["Edit your last message", ["↑"]],
  ["To the message box", ["/"]],
  ["This help", ["?"]],
];

export function setUpHelp() {
  const box = byId("single-keys", HTMLInputElement);
  box.checked = readPref("single-keys", true);
  box.addEventListener("change", () => writePref("single-keys", box.checked));
  byId("help-keys").append(
    ...KEYS.map(([action, keys]) =>
      h("div", {}, h("dt", {}, String(action)), h("dd", {}, ...[...keys].map((key) => h("kbd", {}, key)))),
    ),
  );
  byId("search-key").textContent = MAC ? "⌘ K" : "Ctrl K";
  closeByClick(byId("help", HTMLDialogElement));
}

export const showHelp = () => byId("help", HTMLDialogElement).showModal();

/** @param {() => void} onSaved */
export function setUpKey(onSaved) {
  const dialog = byId("key-dialog", HTMLDialogElement);
  closeByClick(dialog);
  byId("key-forget").addEventListener("click", () => {
    setApiKey("");
    dialog.close();
  });
  byId("key-form").addEventListener("submit", () => {
    setApiKey(byId("key-input", HTMLInputElement).value.trim());
    onSaved();
  });
}

/** @param {string} [why] reason shown in the dialog */
export function askKey(why = "This server may ask for a key.") {
  const dialog = byId("key-dialog", HTMLDialogElement);
  byId("key-why").textContent = `${why} A key stays in this tab and is forgotten when you close it.`;
  byId("key-input", HTMLInputElement).value = apiKey();
  if (!dialog.open) dialog.showModal();
  byId("key-input", HTMLInputElement).focus();
}

/**
 * Closes the dialog by its cross or by a click outside. The cross is not a submit button, so Enter in a field does
 * not press it.
 * @param {HTMLDialogElement} dialog
 */
export function closeByClick(dialog) {
  dialog.addEventListener("click", (event) => {
    const target = /** @type {Element} */ (event.target);
    if (target === dialog || target.closest("[data-close]")) dialog.close();
  });
}
