// Message that waits for the running answer: one per conversation, shown above the message box, kept across a reload.
import { byId } from "./dom.js";
import { readPref, writePref } from "./prefs.js";

export class Queue {
  #shown = "";

  /** @param {(id: string) => void} onTakeBack */
  constructor(onTakeBack) {
    byId("queued-back").addEventListener("click", () => onTakeBack(this.#shown));
  }

  /** Appends to the queued message. @param {string} id @param {string} text */
  put(id, text) {
    const before = readPref(`queued.${id}`, "");
    writePref(`queued.${id}`, before ? `${before}\n\n${text}` : text);
    this.show(id);
  }

  /** Removes and returns the queued message; "" if there is none. @param {string} id @returns {string} */
  take(id) {
    const text = readPref(`queued.${id}`, "");
    writePref(`queued.${id}`, null);
    this.show(this.#shown);
    return text;
  }

  /** @param {string} id the open conversation */
  show(id) {
    this.#shown = id;
    const text = readPref(`queued.${id}`, "");
    byId("queued").hidden = !text;
    byId("queued-text").textContent = text;
  }
}
