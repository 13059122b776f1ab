// Help dialog: keyboard shortcuts, and choices that hold for all conversations.
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

/** Choices with their defaults; the style sheets know them as attributes of the document. @type {[string, boolean][]} */
const CHOICES = [
  ["single-keys", true],
  ["titles", true],
  ["figures", true],
  ["wide", false],
];

export function setUpHelp() {
  for (const [name, otherwise] of CHOICES) {
    const box = byId(name, HTMLInputElement);
    const apply = () => document.documentElement.toggleAttribute(`data-${name}`, box.checked);
    box.checked = readPref(name, otherwise);
    box.addEventListener("change", () => {
      writePref(name, box.checked);
      apply();
    });
    apply();
  }
  byId("help-keys").append(
    ...KEYS.map(([action, keys]) =>
      h("div", {}, h("dt", {}, String(action)), h("dd", {}, ...[...keys].map((key) => h("kbd", {}, key)))),
    ),
  );
  byId("search-key").textContent = MAC ? "⌘ K" : "Ctrl K";
  closeByClick(byId("help", HTMLDialogElement));
}

export const showHelp = () => byId("help", HTMLDialogElement).showModal();
