// Owns the answers that are being written, in the open conversation and in others: applies the wire's events to the records,
// saves them now and then, and tells whoever is looking. One tab drives an answer; the others read what it saved.
import { ApiError } from "./api.js";
import { Answer } from "./stream.js";
import { leftOver, sort } from "./reasoning.js";

const SAVE_EVERY = 400;
const SILENCE = 4000; // of a tab that writes; one that is queued for longer shares its answer with another reader

/**
 * @typedef {import("./store.js").Conversation} Conversation
 * @typedef {import("./store.js").Message} Message
 * @typedef {{ write(text: string): void, think(text: string): void, status(status: any): void, reconnecting(): void, offline(): void,
 *   retrying(error: any, at: number): void, settle(): void }} Look
 */

export class Runs {
  #heirs = /** @type {Set<string>} */ (new Set());
  #ended = Promise.resolve(); // when the last answer that ended is written down
  #runs = /** @type {Map<string, { answer: Answer, message: Message }>} */ (new Map());

  /**
   * @param {import("./store.js").Store} store
   * @param {{ lookAt(message: Message): Look | null, changed(): void, ended(conversation: Conversation, message: Message): void, said(text: string, conversation: Conversation): void, failed(error: ApiError): void }} page
   */
  constructor(store, page) {
    this.store = store;
    this.page = page;
  }

  /** Conversations with an answer on its way. */
  get running() {
    return new Set(this.#runs.keys());
  }

  /** @param {Conversation} conversation @param {Message} message @param {object} body */
  start(conversation, message, body) {
    return this.#drive(conversation, message, new Answer(body));
  }

  /** Picks up what a reload or a closed tab left; if another tab still drives it, waits for its end first. */
  async pickUp(conversation, message) {
    await this.#alone(message.id, async () => {
      await this.store.refresh({ id: conversation.id });
      const now = this.store.get(conversation.id);
      const left = now?.messages.at(-1);
      if (!now || left?.id !== message.id || left.state !== "streaming" || this.#runs.has(now.id)) return;
      if (left.usage) return this.#end(now, left, "done"); // all was said, only the goodbye was missed
      left.resumed = true;
      if (left.stream) return this.#run(now, left, new Answer(null, left.stream, left.last));
      this.#end(now, left, "error", new ApiError({ code: "interrupted", message: "The page closed before the answer had begun." }));
    });
  }

  /** Another tab writes this answer; should it go away, it is picked up here. Without locks its silence has to tell. */
  async inherit(conversation, message) {
    if (this.#heirs.has(message.id)) return;
    this.#heirs.add(message.id);
    if (!navigator.locks) await this.#silence(conversation.id, message.id);
    await this.pickUp(conversation, message);
    this.#heirs.delete(message.id);
  }

  /** Until nothing is heard of an answer from the tab that writes it. */
  async #silence(conversation, id) {
    for (;;) {
      const last = this.store.get(conversation)?.messages.at(-1);
      if (last?.id !== id || last.state !== "streaming" || Date.now() - (last.lastAt ?? last.created) > SILENCE) return;
      await new Promise((resolve) => setTimeout(resolve, SILENCE / 4));
    }
  }

  /** @param {string} id */
  stop(id) {
    const run = this.#runs.get(id);
    if (!run) return false;
    run.answer.stop();
    const conversation = this.store.get(id);
    this.#runs.delete(id);
    if (conversation) this.#end(conversation, run.message, "stopped");
    return true;
  }

  /** Ends an answer that another tab has removed, with its conversation or alone; nothing of it is written back. @param {string} id */
  dropRemoved(id) {
    const run = this.#runs.get(id);
    if (!run || this.store.get(id)?.messages.includes(run.message)) return;
    run.answer.stop();
    this.#runs.delete(id);
    this.store.written.delete(run.message.id);
    this.page.changed();
  }

  /** @param {string} id */
  now(id) {
    this.#runs.get(id)?.answer.now();
  }

  #drive(conversation, message, answer) {
    return this.#alone(message.id, () => this.#run(conversation, message, answer));
  }

  async #run(conversation, message, answer) {
    this.#runs.set(conversation.id, { answer, message });
    this.store.written.add(message.id);
    this.page.changed();
    this.page.said("Reading your message", conversation);
    let savedAt = 0;
    let pausedAt = 0;
    for await (const event of answer.events()) {
      if (this.#runs.get(conversation.id)?.answer !== answer) continue; // stopped meanwhile: let the generator clean up
      if (pausedAt) message.pausedMs = (message.pausedMs ?? 0) + Date.now() - pausedAt;
      const waits = event.kind === "status" && (event.state === "paused" || (event.state === "queued" && message.pieces));
      pausedAt = waits ? Date.now() : 0;
      const end = this.#apply(conversation, message, event);
      if (end) {
        this.#runs.delete(conversation.id);
        this.#end(conversation, message, end, event.kind === "error" ? event.error : null);
        return;
      }
      // When the first token came can be read from nothing that comes later.
      const begins = event.kind === "open" || (event.kind === "delta" && message.pieces === 1);
      if (Date.now() - savedAt < SAVE_EVERY && !begins) continue;
      savedAt = Date.now();
      this.store.save(conversation, message);
    }
  }

  /** One event onto the record and, if somebody looks, onto the page. Gives the final state when it is one. */
  #apply(conversation, message, event) {
    const look = this.page.lookAt(message);
    if ("id" in event && event.id) message.last = event.id;
    switch (event.kind) {
      case "open":
        message.stream = event.stream;
        look?.status({ state: "running" });
        return null;
      case "status":
        look?.status(event);
        if (event.cause === "restart") this.page.said("Waiting, the engine starts again", conversation);
        else if (event.state !== "running") this.page.said(event.state === "paused" ? "Paused" : `Waiting, ${event.position ?? ""} in line`, conversation);
        return null;
      case "delta":
        message.lastAt = Date.now();
        if (!message.resumed) message.firstAt ??= message.lastAt; // it may have come while nobody read
        message.pieces = (message.pieces ?? 0) + 1;
        this.#say(message, { text: "", thinking: event.thinking });
        this.#say(message, sort(message, event.text));
        this.page.said(message.content ? "Answering" : "Thinking", conversation);
        return null;
      case "finish":
        message.finish = event.reason;
        return null;
      case "usage":
        message.usage = event.usage;
        return null;
      case "reconnecting":
        look?.reconnecting();
        this.page.said("Reconnecting", conversation);
        return null;
      case "offline":
        look?.offline();
        this.page.said("The server cannot be reached", conversation);
        return null;
      case "retry":
        look?.retrying(event.error, event.at);
        this.page.said(`Waiting: ${event.error.message}`, conversation);
        return null;
      case "error":
        return "error";
      case "done":
        return "done";
    }
    return null;
  }

  #say(message, { text, thinking }) {
    const look = this.page.lookAt(message);
    if (thinking) {
      message.thinking = (message.thinking ?? "") + thinking;
      message.thinkingAt ??= Date.now();
    } else if (text && message.thinkingAt) {
      message.thoughtMs ??= Date.now() - message.thinkingAt;
    }
    if (thinking) look?.think(thinking);
    if (text) message.content += text;
    if (text) look?.write(text);
  }

  #end(conversation, message, state, error = null) {
    this.#say(message, leftOver(message));
    message.state = state;
    message.error = error && { message: error.message, code: error.code, status: error.status };
    conversation.updated = Date.now();
    this.#ended = this.store.save(conversation, message);
    this.store.written.delete(message.id);
    this.page.lookAt(message)?.settle();
    this.page.changed();
    this.page.ended(conversation, message);
    this.page.said({ done: "Done", stopped: "Stopped", error: `Problem: ${error?.message}` }[state], conversation);
    if (error) this.page.failed(error);
  }

  /** Runs while holding a lock that other tabs respect; plain http has no locks, there two tabs may both read. */
  #alone(name, work) {
    // Whoever is let in next reads the record: it must not find an answer on its way that has ended.
    const whole = () => work().finally(() => this.#ended);
    return navigator.locks ? navigator.locks.request(`carousel.answer.${name}`, whole) : whole();
  }
}
