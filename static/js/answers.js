// Answers in progress, in the open conversation and in others: applies stream events to the records, saves them periodically
// and updates the page. One tab drives an answer; the other tabs read the saved records.
import { ApiError } from "./api.js";
import { Answer } from "./stream.js";
import { shortStatus } from "./labels.js";
import { appendPiece } from "./tools.js";

/** @import { AnswerRequest, Conversation, Message, Status } from "./types.js" */
/** @import { AnswerEvent } from "./stream.js" */

/** Fields that are reset when an answer is continued: its text stays, all else belongs to the new request. */
const CONTINUED_FIELDS = {
  state: "streaming",
  error: null,
  finish: undefined,
  usage: undefined,
  stream: null,
  last: null,
  resumed: false,
  firstAt: undefined,
  lastAt: undefined,
  pieces: 0,
  pausedMs: 0,
};
const SAVE_INTERVAL_MS = 400;
// Ms without an update before another tab takes an answer over; a longer time in the queue causes two readers
const TAKEOVER_MS = 4000;

/**
 * View of an answer in the open conversation.
 * @typedef {{ begin(): void, write(text: string): void, think(text: string): void, call(): void, status(status: Status): void,
 *   reconnecting(): void, offline(): void, retrying(error: ApiError, at: number): void, settle(): void }} AnswerDisplay
 *
 * @typedef {{ viewOf(message: Message): AnswerDisplay | null, changed(): void,
 *   ended(conversation: Conversation, message: Message): void, announce(text: string, conversation: Conversation): void,
 *   onError(error: ApiError): void }} AnswerPage
 */

export class Answers {
  #takingOver = /** @type {Set<string>} */ (new Set());
  #ended = Promise.resolve(); // resolves when the last ended answer is saved
  #running = /** @type {Map<string, { answer: Answer, message: Message }>} */ (new Map());

  /** @param {import("./store.js").Store} store @param {AnswerPage} page */
  constructor(store, page) {
    this.store = store;
    this.page = page;
  }

  /** Ids of conversations with an answer in progress. */
  get running() {
    return new Set(this.#running.keys());
  }

  /** @param {Conversation} conversation @param {Message} message @param {AnswerRequest} body */
  start(conversation, message, body) {
    return this.#drive(conversation, message, new Answer(body));
  }

  /**
   * Continues an ended answer after its present text.
   * @param {Conversation} conversation @param {Message} message @param {AnswerRequest} body
   */
  continue(conversation, message, body) {
    // Reasoning that goes on has lasted as long as before the pause.
    if (message.thinkingAt && message.thoughtMs === undefined)
      message.thinkingAt += Date.now() - (message.lastAt ?? Date.now());
    Object.assign(message, { ...CONTINUED_FIELDS, sentAt: Date.now() });
    this.store.save(conversation, message);
    this.page.viewOf(message)?.begin();
    return this.start(conversation, message, body);
  }

  /**
   * Resumes an answer after a reload or a closed tab; if another tab still drives it, waits for its end first.
   * @param {Conversation} conversation @param {Message} message
   */
  async resumeSaved(conversation, message) {
    await this.#exclusively(message.id, async () => {
      await this.store.refresh({ id: conversation.id });
      const now = this.store.get(conversation.id);
      const last = now?.messages.at(-1);
      if (!now || last?.id !== message.id || last.state !== "streaming" || this.#running.has(now.id)) return;
      // The text is complete, only the end of the stream was missed
      if (last.usage) return this.#end(now, last, "done");
      last.resumed = true;
      if (last.stream) return this.#run(now, last, new Answer(null, last.stream, last.last));
      this.#end(
        now,
        last,
        "error",
        new ApiError({ code: "interrupted", message: "The page closed before the answer had begun." }),
      );
    });
  }

  /**
   * Takes over an answer of another tab when that tab goes away. Without locks this is inferred from missing updates.
   * @param {Conversation} conversation @param {Message} message
   */
  async takeOver(conversation, message) {
    if (this.#takingOver.has(message.id)) return;
    this.#takingOver.add(message.id);
    if (!navigator.locks) await this.#untilSilent(conversation.id, message.id);
    await this.resumeSaved(conversation, message);
    this.#takingOver.delete(message.id);
  }

  /** Waits until the tab that drives an answer stops updating it. @param {string} conversation @param {string} id */
  async #untilSilent(conversation, id) {
    for (;;) {
      const last = this.store.get(conversation)?.messages.at(-1);
      if (last?.id !== id || last.state !== "streaming" || Date.now() - (last.lastAt ?? last.created) > TAKEOVER_MS)
        return;
      await new Promise((resolve) => setTimeout(resolve, TAKEOVER_MS / 4));
    }
  }

  /** @param {string} id */
  stop(id) {
    const active = this.#running.get(id);
    if (!active) return false;
    active.answer.stop();
    const conversation = this.store.get(id);
    this.#running.delete(id);
    if (conversation) this.#end(conversation, active.message, "stopped");
    return true;
  }

  /** Ends an answer that another tab deleted, alone or with its conversation, without saving it. @param {string} id */
  dropRemoved(id) {
    const active = this.#running.get(id);
    if (!active || this.store.get(id)?.messages.includes(active.message)) return;
    active.answer.stop();
    this.#running.delete(id);
    this.store.ownMessages.delete(active.message.id);
    this.page.changed();
  }

  /** @param {string} id */
  now(id) {
    this.#running.get(id)?.answer.now();
  }

  /** @param {Conversation} conversation @param {Message} message @param {Answer} answer */
  #drive(conversation, message, answer) {
    return this.#exclusively(message.id, () => this.#run(conversation, message, answer));
  }

  /** @param {Conversation} conversation @param {Message} message @param {Answer} answer */
  async #run(conversation, message, answer) {
    this.#running.set(conversation.id, { answer, message });
    this.store.ownMessages.add(message.id);
    this.page.changed();
    this.page.announce("Reading your message", conversation);
    let savedAt = 0;
    let pausedAt = 0;
    for await (const event of answer.events()) {
      // Stopped meanwhile: the generator still has to clean up
      if (this.#running.get(conversation.id)?.answer !== answer) continue;
      if (pausedAt) message.pausedMs = (message.pausedMs ?? 0) + Date.now() - pausedAt;
      const isWaiting =
        event.kind === "status" && (event.state === "paused" || (event.state === "queued" && message.pieces));
      pausedAt = isWaiting ? Date.now() : 0;
      const end = this.#apply(conversation, message, event);
      if (end) {
        this.#running.delete(conversation.id);
        this.#end(conversation, message, end, event.kind === "error" ? event.error : null);
        return;
      }
      // Save at the first token: its time cannot be derived from later events.
      const begins = event.kind === "open" || ("id" in event && message.pieces === 1);
      if (Date.now() - savedAt < SAVE_INTERVAL_MS && !begins) continue;
      savedAt = Date.now();
      this.store.save(conversation, message);
    }
  }

  /**
   * Applies an event to the record and, if the answer is visible, to the page. Returns the final state, or null.
   * @param {Conversation} conversation @param {Message} message @param {AnswerEvent} event
   */
  #apply(conversation, message, event) {
    const view = this.page.viewOf(message);
    if ("id" in event && event.id) message.last = event.id;
    switch (event.kind) {
      case "open":
        message.stream = event.stream;
        view?.status({ state: "running" });
        return null;
      case "status":
        view?.status(event);
        if (event.state !== "running") this.page.announce(shortStatus(event), conversation);
        return null;
      case "delta":
      case "call":
        message.lastAt = Date.now();
        // After a reload the time of the first token is unknown
        if (!message.resumed) message.firstAt ??= message.lastAt;
        message.pieces = (message.pieces ?? 0) + 1;
        if (event.kind === "call") this.#appendCall(message, event.piece);
        else this.#append(message, event);
        this.page.announce(progress(message), conversation);
        return null;
      case "finish":
        message.finish = event.reason;
        return null;
      case "usage":
        message.usage = event.usage;
        return null;
      case "reconnecting":
        view?.reconnecting();
        this.page.announce("Reconnecting", conversation);
        return null;
      case "offline":
        view?.offline();
        this.page.announce("The server cannot be reached", conversation);
        return null;
      case "retry":
        view?.retrying(event.error, event.at);
        this.page.announce(`Waiting: ${event.error.message}`, conversation);
        return null;
      case "error":
        return "error";
      case "done":
        return "done";
    }
    return null;
  }

  /** @param {Message} message @param {{ text: string, thinking: string }} added */
  #append(message, { text, thinking }) {
    const view = this.page.viewOf(message);
    if (thinking) {
      message.thinking = (message.thinking ?? "") + thinking;
      message.thinkingAt ??= Date.now();
    }
    if (text && message.thinkingAt) message.thoughtMs ??= Date.now() - message.thinkingAt;
    if (thinking) view?.think(thinking);
    if (text) message.content += text;
    if (text) view?.write(text);
  }

  /** @param {Message} message @param {import("./types.js").CallPiece} piece */
  #appendCall(message, piece) {
    if (message.thinkingAt) message.thoughtMs ??= Date.now() - message.thinkingAt;
    appendPiece(message, piece);
    this.page.viewOf(message)?.call();
  }

  /**
   * @param {Conversation} conversation @param {Message} message @param {"done" | "stopped" | "error"} state
   * @param {ApiError | null} [error]
   */
  #end(conversation, message, state, error = null) {
    message.state = state;
    message.error = error && { message: error.message, code: error.code, status: error.status };
    conversation.updated = Date.now();
    this.#ended = this.store.save(conversation, message);
    this.store.ownMessages.delete(message.id);
    this.page.viewOf(message)?.settle();
    this.page.changed();
    this.page.ended(conversation, message);
    this.page.announce({ done: "Done", stopped: "Stopped", error: `Problem: ${error?.message}` }[state], conversation);
    if (error) this.page.onError(error);
  }

  /**
   * Runs `work` under a lock shared by all tabs. Plain http has no locks, so there two tabs can read the same answer.
   * @param {string} name @param {() => Promise<void>} work @returns {Promise<void>}
   */
  async #exclusively(name, work) {
    // The next holder of the lock reads the record, which must not show an ended answer as in progress.
    const saved = () => work().finally(() => this.#ended);
    await (navigator.locks ? navigator.locks.request(`carousel.answer.${name}`, saved) : saved());
  }
}

/** Returns the progress of an answer for screen readers. @param {Message} message */
const progress = ({ calls, content }) => (calls?.length ? "Calling a tool" : content ? "Answering" : "Thinking");
