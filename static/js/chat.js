// Owns what a person can do with conversations: open, send, answer again, edit, stop, remove. Holds which one is open.
import { stopAnswer } from "./api.js";
import { MODEL } from "./env.js";
import { asJson, asMarkdown, download, fileName } from "./export.js";
import { toast } from "./notices.js";
import { readPref } from "./prefs.js";
import { requestFor } from "./sampling.js";
import { newId, titleFrom } from "./store.js";

const FRESH = 10 * 60_000; // an answer left longer ago than this has certainly been let go by the server
const COMPARE = 12_000; // for what was dropped: which answer is better is seen only when the new one has grown

export class Chat {
  #models = [MODEL];
  /** What answers are asked with: somebody waits for them, so the best that the key may ask for. */
  tier = "priority";

  /**
   * @param {{ store: import("./store.js").Store, runs: import("./runs.js").Runs, thread: import("./thread.js").Thread,
   *   composer: import("./composer.js").Composer, show: () => void }} parts
   */
  constructor({ store, runs, thread, composer, show }) {
    this.store = store;
    this.runs = runs;
    this.thread = thread;
    this.composer = composer;
    this.show = show;
    this.current = this.#blank();
  }

  /** @param {string[]} models */
  setModels(models) {
    this.#models = models;
    if (!models.includes(this.current.model)) this.current.model = models[0];
    this.show();
  }

  get models() {
    return this.#models;
  }

  #blank() {
    const { system = "", sampling = {} } = readPref("defaults", /** @type {any} */ ({}));
    const now = Date.now();
    return { id: newId(), title: "New conversation", created: now, updated: now, model: this.#models[0], system, sampling: { ...sampling }, messages: [] };
  }

  /** Shows a conversation, or a blank one when there is none of that id. @param {string} [id] */
  open(id = "") {
    this.current = this.store.get(id) ?? this.#blank();
    this.thread.show(this.current.messages);
    this.composer.open(this.current.messages.length ? this.current.id : "new");
    this.#inherit();
    this.show();
  }

  /** Another tab wrote or deleted this conversation; an answer that is written here goes on, if it is still there. @param {string} id */
  changedElsewhere(id) {
    this.runs.dropRemoved(id);
    if (id !== this.current.id) return this.show();
    const conversation = this.store.get(id);
    if (!conversation) return this.#removedElsewhere();
    this.current = conversation;
    this.thread.sync(conversation.messages);
    this.#inherit();
    return this.show();
  }

  #removedElsewhere() {
    history.replaceState(null, "", "#/");
    this.open();
    toast("Another tab deleted this conversation.");
  }

  #inherit() {
    if (this.isWrittenElsewhere) this.runs.inherit(this.current, /** @type {any} */ (this.current.messages.at(-1)));
  }

  /** Another tab writes an answer into the open conversation: what was added here it would not know, and write over. */
  get isWrittenElsewhere() {
    return this.#isForeign(this.current);
  }

  #isForeign({ id, messages }) {
    return messages.at(-1)?.state === "streaming" && !this.runs.running.has(id);
  }

  get isBusy() {
    return this.runs.running.has(this.current.id) || this.isWrittenElsewhere;
  }

  /** @param {string} text */
  send(text) {
    const { current } = this;
    if (this.isBusy) return;
    if (!current.messages.length) {
      this.change((conversation) => (conversation.title = titleFrom(text)));
      this.composer.forget("new");
      history.pushState(null, "", `#/c/${current.id}`);
    }
    this.#answer(this.#add({ id: newId(), role: "user", content: text, created: Date.now() }));
    if (current.messages.length === 2) this.composer.open(current.id);
  }

  #add(message) {
    this.current.messages.push(message);
    this.thread.append(message);
    return message;
  }

  /** Asks for the answer to the messages there are. @param {import("./store.js").Message[]} added messages that are not kept yet */
  #answer(...added) {
    const { current } = this;
    const now = Date.now();
    const body = requestFor(current, current.messages, current.model, this.tier);
    const message = this.#add({ id: newId(), role: "assistant", content: "", created: now, sentAt: now, state: "streaming", model: current.model });
    current.updated = now;
    this.store.append(current, [...added, message]);
    this.thread.follow.toEnd();
    this.runs.start(current, message, body);
  }

  /** Drops this message and all after it; an answer's text, and what was more than one question or answer, can be had back. */
  #truncate(id) {
    const { current } = this;
    this.runs.stop(current.id);
    const before = [...current.messages];
    const at = before.findIndex((message) => message.id === id);
    const dropped = before.slice(at);
    this.store.cut(current.id, id);
    this.thread.show(current.messages);
    const isMore = dropped.length > (before[at].role === "user" ? 2 : 1);
    const hasText = dropped.some(({ role, content, thinking }) => role === "assistant" && (content || thinking));
    const text = isMore ? "What came after it is gone." : "The earlier answer was replaced.";
    if (isMore || hasText) this.#offerBack(text, current.id, before, at);
  }

  #offerBack(text, id, messages, kept) {
    toast(text, { action: "Undo", run: () => this.#bringBack(id, messages, kept), ms: COMPARE });
  }

  /** Puts `messages` back, the first of which were `kept`, unless more was said since than the one answer. */
  #bringBack(id, messages, kept) {
    const conversation = this.store.get(id);
    if (!conversation) return;
    if (this.#isForeign(conversation)) return this.#offerBack("Another tab is writing in this conversation.", id, messages, kept);
    if (conversation.messages.length > kept + 2) return toast("The conversation has gone on since.");
    this.runs.stop(id);
    conversation.messages = messages;
    this.store.restore(conversation);
    if (id === this.current.id) this.open(id);
  }

  /** @param {string} id an answer */
  regenerate(id) {
    if (this.#isTaken()) return;
    this.#truncate(id);
    this.#answer();
  }

  /** @param {string} id a person's message @param {string} text */
  edit(id, text) {
    if (this.#isTaken()) return;
    this.#truncate(id);
    this.send(text.trim());
    this.composer.focusIfDesk();
  }

  #isTaken() {
    if (this.isWrittenElsewhere) toast("Another tab is writing in this conversation.");
    return this.isWrittenElsewhere;
  }

  editLast() {
    const last = this.current.messages.findLast(({ role }) => role === "user");
    if (last && !this.isBusy) this.thread.edit(last.id);
  }

  stop() {
    const stream = this.isWrittenElsewhere && this.current.messages.at(-1)?.stream;
    if (stream) stopAnswer(stream); // the tab that writes hears it from the server
    return this.runs.stop(this.current.id);
  }

  /** @param {string} model */
  setModel(model) {
    this.change((conversation) => (conversation.model = model));
  }

  /** Changes fields of the open conversation. One that was never sent is not worth keeping yet. @param {(conversation: any) => void} apply */
  change(apply) {
    if (this.store.get(this.current.id)) this.store.change(this.current.id, apply);
    else apply(this.current);
    this.show();
  }

  /** @param {string} id @param {string} title */
  rename(id, title) {
    this.store.change(id, (conversation) => (conversation.title = title));
    this.show();
  }

  /** @param {string} id */
  remove(id) {
    const conversation = this.store.get(id);
    if (!conversation) return;
    this.runs.stop(id);
    this.store.remove(id);
    this.composer.forget(id);
    if (id === this.current.id) location.hash = "#/";
    else this.show();
    toast(`Deleted “${titleFrom(conversation.title)}”`, { action: "Undo", run: () => {
      this.store.restore(conversation);
      location.hash = `#/c/${id}`;
      this.show();
    } });
  }

  /** @param {string} id @param {"md" | "json"} form */
  exportAs(id, form) {
    const conversation = this.store.get(id);
    if (!conversation) return;
    const text = form === "md" ? asMarkdown(conversation) : asJson(conversation);
    download(`${fileName(conversation.title)}.${form}`, text, form === "md" ? "text/markdown" : "application/json");
  }

  /** Answers that were being written when the page went away are picked up; before anything is shown. */
  pickUp() {
    for (const conversation of this.store.list())
      for (const message of conversation.messages.filter(({ state }) => state === "streaming")) {
        const isFresh = !message.stream || Date.now() - (message.lastAt ?? message.created) < FRESH;
        if (isFresh && message === conversation.messages.at(-1)) this.runs.pickUp(conversation, message);
        else this.#interrupted(conversation, message);
      }
  }
  #interrupted(conversation, message) {
    Object.assign(message, { state: "error", error: { code: "interrupted", message: "The page closed before the answer was complete." } });
    this.store.save(conversation, message);
  }
}
