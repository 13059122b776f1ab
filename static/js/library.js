// Actions on whole conversations, open or not: rename, delete, export, import. Also resumes, at the start of the page,
// answers that were in progress when it was closed.
import { RESUME_SECONDS } from "./env.js";
import { asJson, asMarkdown, download, fileName } from "./export.js";
import { toast } from "./notices.js";
import { titleFrom } from "./title.js";
import { Tree } from "./tree.js";

/** @import { Conversation, Message } from "./types.js" */

const MAX_AGE_MS = (RESUME_SECONDS + 600) * 1000; // ms after which the server has certainly dropped an abandoned answer
const NOTICE_MS = 20_000;

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
    this.#drop([id]);
    toast(`Deleted “${titleFrom(conversation.title, 60)}”`, {
      action: "Undo",
      run: () => {
        this.store.restore(conversation);
        location.hash = `#/c/${id}`;
        this.chat.show();
      },
    });
  }

  /** @param {string[]} ids */
  #drop(ids) {
    for (const id of ids) {
      this.answers.stopAll(id);
      this.store.remove(id);
      this.chat.composer.forget(id);
    }
    if (ids.includes(this.chat.current.id)) location.hash = "#/";
    else this.chat.show();
  }

  /** @param {string} id @param {"md" | "json"} form */
  async exportAs(id, form) {
    const conversation = this.store.get(id);
    if (!conversation) return;
    const name = `${fileName(conversation.title)}.${form}`;
    if (form === "md") download(name, [asMarkdown(conversation, new Tree(conversation).path)], "text/markdown");
    else download(name, await asJson([conversation]), "application/json");
  }

  async exportAll() {
    const name = `conversations-${new Date().toISOString().slice(0, 10)}.json`;
    download(name, await asJson(this.store.list()), "application/json");
  }

  /**
   * Saves the conversations of a file, and offers an undo. A worker reads the file, since that takes seconds if it is
   * large.
   * @param {File} file @param {(share: number) => void} onProgress
   */
  async importFile(file, onProgress) {
    const worker = new Worker(new URL("./import_worker.js", import.meta.url), { type: "module" });
    const ask = (/** @type {File | number} */ request) =>
      new Promise((resolve, reject) => {
        worker.onmessage = ({ data }) => (data.error ? reject(new Error(data.error)) : resolve(data));
        worker.onerror = () => reject(new Error("The file could not be read. Reload the page, and try again."));
        worker.postMessage(request);
      });
    const ids = /** @type {string[]} */ ([]);
    try {
      const { count, leftOut } = await ask(file);
      for (let i = 0; i < count; i++) {
        const conversation = /** @type {Conversation} */ (await ask(i));
        if (!this.chat.models.includes(conversation.model)) conversation.model = this.chat.models[0];
        ids.push(conversation.id);
        await this.store.restore(conversation);
        onProgress((i + 1) / count);
      }
      const left = leftOut ? `, ${leftOut} image${leftOut > 1 ? "s" : ""} or attachments left out` : "";
      const text = `${count} conversation${count > 1 ? "s" : ""} imported${left}`;
      toast(text, { action: "Undo", run: () => this.#drop(ids), ms: NOTICE_MS });
      this.chat.show();
    } catch (error) {
      this.#drop(ids);
      toast(/** @type {Error} */ (error).message, { ms: NOTICE_MS });
    } finally {
      worker.terminate();
    }
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
