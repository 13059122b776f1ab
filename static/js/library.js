// Actions on whole conversations, open or not: rename, delete, export. Also resumes, at the start of the page, answers that
// were in progress when it was closed.
import { RESUME_SECONDS } from "./env.js";
import { asJson, asMarkdown, download, fileName } from "./export.js";
import { toast } from "./notices.js";
import { titleFrom } from "./title.js";

/** @import { Conversation, Message } from "./types.js" */

const MAX_AGE_MS = (RESUME_SECONDS + 600) * 1000; // ms after which the server has certainly dropped an abandoned answer

export class Library {
  /**
   * @param {{ store: import("./store.js").Store, answers: import("./answers.js").Answers, chat: import("./chat.js").Chat }} parts
   */
  constructor({ store, answers, chat }) {
    this.store = store;
    this.answers = answers;
    this.chat = chat;
  }

  /** @param {string} id @param {string} title */
  rename(id, title) {
    this.store.change(id, (conversation) => (conversation.title = title));
    this.chat.show();
  }

  /** @param {string} id */
  remove(id) {
    const conversation = this.store.get(id);
    if (!conversation) return;
    this.answers.stopAll(id);
    this.store.remove(id);
    this.chat.composer.forget(id);
    if (id === this.chat.current.id) location.hash = "#/";
    else this.chat.show();
    toast(`Deleted “${titleFrom(conversation.title, 60)}”`, {
      action: "Undo",
      run: () => {
        this.store.restore(conversation);
        location.hash = `#/c/${id}`;
        this.chat.show();
      },
    });
  }

  /** @param {string} id @param {"md" | "json"} form */
  exportAs(id, form) {
    const conversation = this.store.get(id);
    if (!conversation) return;
    const text = form === "md" ? asMarkdown(conversation) : asJson(conversation);
    download(`${fileName(conversation.title)}.${form}`, text, form === "md" ? "text/markdown" : "application/json");
  }

  /** Resumes answers that were in progress when the page was closed; answers before anything is shown. */
  resumeSaved() {
    for (const conversation of this.store.list())
      for (const message of conversation.messages.filter(({ state }) => state === "streaming")) {
        if (!message.stream || Date.now() - (message.lastAt ?? message.created) < MAX_AGE_MS)
          this.answers.resumeSaved(conversation, message);
        else this.#interrupted(conversation, message);
      }
  }

  /** @param {Conversation} conversation @param {Message} message */
  #interrupted(conversation, message) {
    Object.assign(message, {
      state: "error",
      error: { code: "interrupted", message: "The page closed before the answer was complete." },
    });
    this.store.save(conversation, message);
  }
}
