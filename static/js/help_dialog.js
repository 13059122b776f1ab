// Help dialog: keyboard shortcuts.
import { closeByClick } from "./close_dialog.js";
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
