// Answers in progress, in the open conversation and in others: applies stream events to the records, saves them periodically
// and updates the page. One tab drives an answer; the other tabs read the saved records.
import { ApiError } from "./api.js";
import { Answer } from "./stream.js";
import { leftOver, sort } from "./reasoning.js";

const SAVE_EVERY = 400;
const SILENCE = 4000; // ms without an update before another tab takes an answer over; a longer time in the queue causes two readers

/**
 * @typedef {import("./store.js").Conversation} Conversation
 * @typedef {import("./store.js").Message} Message
 * @typedef {{ write(text: string): void, think(text: string): void, status(status: any): void, reconnecting(): void, offline(): void,
 *   retrying(error: any, at: number): void, settle(): void }} Look
 */

export class Runs {
  #heirs = /** @type {Set<string>} */ (new Set());
  #ended = Promise.resolve(); // resolves when the last ended answer is saved
  #runs = /** @type {Map<string, { answer: Answer, message: Message }>} */ (new Map());

  /**
   * @param {import("./store.js").Store} store
   * @param {{ lookAt(message: Message): Look | null, changed(): void, ended(conversation: Conversation, message: Message): void, said(text: string, conversation: Conversation): void, failed(error: ApiError): void }} page
   */
  constructor(store, page) {
    this.store = store;
    this.page = page;
  }

  /** Ids of conversations with an answer in progress. */
  get running() {
    return new Set(this.#runs.keys());
  }

  /** @param {Conversation} conversation @param {Message} message @param {object} body */
  start(conversation, message, body) {
    return this.#drive(conversation, message, new Answer(body));
  }

  /** Resumes an answer after a reload or a closed tab; if another tab still drives it, waits for its end first. */
  async pickUp(conversation, message) {
    await this.#alone(message.id, async () => {
      await this.store.refresh({ id: conversation.id });
      const now = this.store.get(conversation.id);
      const left = now?.messages.at(-1);
      if (!now || left?.id !== message.id || left.state !== "streaming" || this.#runs.has(now.id)) return;
      if (left.usage) return this.#end(now, left, "done"); // the text is complete, only the end of the stream was missed
      left.resumed = true;
      if (left.stream) return this.#run(now, left, new Answer(null, left.stream, left.last));
      this.#end(now, left, "error", new ApiError({ code: "interrupted", message: "The page closed before the answer had begun." }));
    });
  }

  /** Takes over an answer of another tab when that tab goes away. Without locks this is inferred from missing updates. */
  async inherit(conversation, message) {
    if (this.#heirs.has(message.id)) return;
    this.#heirs.add(message.id);
    if (!navigator.locks) await this.#silence(conversation.id, message.id);
    await this.pickUp(conversation, message);
    this.#heirs.delete(message.id);
  }

  /** Waits until the tab that drives an answer stops updating it. */
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

  /** Ends an answer that another tab deleted, alone or with its conversation, without saving it. @param {string} id */
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
      if (this.#runs.get(conversation.id)?.answer !== answer) continue; // stopped meanwhile: the generator still has to clean up
      if (pausedAt) message.pausedMs = (message.pausedMs ?? 0) + Date.now() - pausedAt;
      const waits = event.kind === "status" && (event.state === "paused" || (event.state === "queued" && message.pieces));
      pausedAt = waits ? Date.now() : 0;
      const end = this.#apply(conversation, message, event);
      if (end) {
        this.#runs.delete(conversation.id);
        this.#end(conversation, message, end, event.kind === "error" ? event.error : null);
        return;
      }
      // Save at the first token: its time cannot be derived from later events.
      const begins = event.kind === "open" || (event.kind === "delta" && message.pieces === 1);
      if (Date.now() - savedAt < SAVE_EVERY && !begins) continue;
      savedAt = Date.now();
      this.store.save(conversation, message);
    }
  }

  /** Applies an event to the record and, if the answer is visible, to the page. Returns the final state, or null. */
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
        if (!message.resumed) message.firstAt ??= message.lastAt; // after a reload the time of the first token is unknown
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

  /** Runs `work` under a lock shared by all tabs. Plain http has no locks, so there two tabs can read the same answer. */
  #alone(name, work) {
    // The next holder of the lock reads the record, which must not show an ended answer as in progress.
    const whole = () => work().finally(() => this.#ended);
    return navigator.locks ? navigator.locks.request(`carousel.answer.${name}`, whole) : whole();
  }
}
