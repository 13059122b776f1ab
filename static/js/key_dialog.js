// Dialog for the API key, on the chat page and on the engine page.
import { apiKey, setApiKey } from "./api.js";
import { closeByClick } from "./close_dialog.js";
import { byId } from "./dom.js";

/** @param {() => void} onSaved */
export function setUpKey(onSaved) {
  const dialog = byId("key-dialog", HTMLDialogElement);
  closeByClick(dialog);
  byId("key-button").addEventListener("click", () => askKey());
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
