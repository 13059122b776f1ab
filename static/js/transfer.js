// Buttons that export all conversations and import those of a file.
import { byId } from "./dom.js";

/** @param {import("./library.js").Library} library */
export function setUpTransfer(library) {
  const dialog = byId("help", HTMLDialogElement);
  const input = byId("import-file", HTMLInputElement);
  const button = byId("import", HTMLButtonElement);
  const bar = byId("import-progress", HTMLProgressElement);
  byId("export-all").addEventListener("click", () => {
    dialog.close(); // which would cover notices
    library.exportAll();
  });
  button.addEventListener("click", () => input.click());
  input.addEventListener("change", async () => {
    const file = input.files?.[0];
    if (!file) return;
    input.value = "";
    bar.removeAttribute("value");
    button.disabled = !(bar.hidden = false);
    await library.importFile(file, (share) => (bar.value = share));
    button.disabled = !(bar.hidden = true);
    dialog.close();
  });
}
