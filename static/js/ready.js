// Answers that are ready while nobody looks: marks in the list, the number in the tab's title, and notifications.
import { toast } from "./notices.js";

/** @import { Conversation, Message } from "./types.js" */

export class Ready {
  /** Ids of conversations with an answer that was not seen. */
  unread = /** @type {Set<string>} */ (new Set());

  /** @param {{ shown(): string, changed(): void, open(id: string): void }} page */
  constructor(page) {
    this.page = page;
    document.addEventListener("visibilitychange", () => document.hidden || this.seen(page.shown()));
  }

  /** Asks, once, whether the browser may notify. */
  ask() {
    if ("Notification" in window && Notification.permission === "default") Notification.requestPermission();
    toast("This answer now gives way to others. Its text stays the same, and this tab says when it is ready.");
  }

  /** Notes the end of an answer. @param {Conversation} conversation @param {Message} message */
  ended({ id, title }, { state, later }) {
    if (state === "stopped" || (!document.hidden && this.page.shown() === id)) return;
    this.unread.add(id);
    this.page.changed();
    if (!later || !("Notification" in window) || Notification.permission !== "granted") return;
    const body = state === "done" ? "The answer is ready." : "The answer could not be completed.";
    const notification = new Notification(title, { body, tag: id });
    notification.onclick = () => {
      window.focus();
      this.page.open(id);
      notification.close();
    };
  }

  /** @param {string} id */
  seen(id) {
    if (!document.hidden && this.unread.delete(id)) this.page.changed();
  }
}
