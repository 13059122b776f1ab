// Answers in progress, in the open conversation and in others: applies stream events to the records, saves them periodically
// and updates the page. One tab drives an answer; the other tabs read the saved records.
import { ApiError } from "./api.js";
import { Answer } from "./stream.js";
import { isStreaming, progress, shortStatus } from "./labels.js";
import { appendPiece } from "./tools.js";
import { usageOf } from "./usage.js";

/** @import { AnswerPage, AnswerRequest, Conversation, Message } from "./types.js" */
/** @import { AnswerEvent } from "./stream.js" */

const CLOSED = "The page closed before the answer had begun.";
const SAVE_INTERVAL_MS = 400;
// Ms without an update before another tab takes an answer over; a longer time in the queue causes two readers
const TAKEOVER_MS = 4000;

/**
 * A stream and the answers that it writes, one for each choice.
 * @typedef {{ answer: Answer, conversation: Conversation, messages: Message[] }} Run
 */

export class Answers {
  #takingOver = /** @type {Set<string>} */ (new Set());
  #ended = Promise.resolve(); // resolves when the last ended answer is saved
  #runs = /** @type {Set<Run>} */ (new Set());

  /** @param {import("./store.js").Store} store @param {AnswerPage} page */
  constructor(store, page) {
    this.store = store;
    this.page = page;
  }

  /** Ids of the conversations with an answer in progress. */
  get running() {
    return new Set([...this.#runs].map(({ conversation }) => conversation.id));
  }

  /** Whether this tab writes an answer. @param {Message} message */
  drives(message) {
    return this.#runOf(message.id) !== undefined;
  }

  /** @param {string} id */
  #runOf(id) {
    return [...this.#runs].find(({ messages }) => messages.some((message) => message.id === id));
  }

  /** Starts a request whose choices are written into messages. @param {Conversation} conversation @param {Message[]} messages @param {AnswerRequest} body */
  start(conversation, messages, body) {
    const run = { answer: new Answer(body), conversation, messages };
    return this.#exclusively(messages[0].id, () => this.#drive(run));
  }

  /**
   * Resumes answers of one request after a reload or a closed tab; if another tab still drives them, waits for their end
   * first.
   * @param {Conversation} conversation @param {Message} message any of them
   */
  async resumeSaved(conversation, message) {
    await this.#exclusively(message.run ?? message.id, async () => {
      await this.store.refresh({ id: conversation.id });
      const now = this.store.get(conversation.id);
      const messages = (now?.messages ?? [])
        .filter(({ id, run }) => id === message.id || (run && run === message.run))
        .sort((a, b) => (a.choice ?? 0) - (b.choice ?? 0));
      const left = messages.filter((one) => one.state === "streaming" && !this.drives(one));
      if (!now || !left.length) return;
      const [{ stream = null, last = null, usage }] = left;
      const run = { answer: new Answer(null, stream, last), conversation: now, messages };
      // The text is complete, only the end of the stream was missed
      if (usage) return this.#end(run, left, "done");
      for (const one of left) one.resumed = true;
      if (stream) return this.#drive(run);
      this.#end(run, left, "error", new ApiError({ code: "interrupted", message: CLOSED }));
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
      const now = this.store.get(conversation)?.messages.find((message) => message.id === id);
      if (now?.state !== "streaming" || Date.now() - (now.lastAt ?? now.created) > TAKEOVER_MS) return;
      await new Promise((resolve) => setTimeout(resolve, TAKEOVER_MS / 4));
    }
  }

  /** Stops the answers of one request; returns whether this tab writes them. @param {string} id of any of them */
  stop(id) {
    const run = this.#runOf(id);
    if (!run) return false;
    run.answer.stop();
    this.#runs.delete(run);
    this.#end(run, run.messages.filter(isStreaming), "stopped");
    return true;
  }

  /** Stops all answers of a conversation. @param {string} id */
  stopAll(id) {
    for (const { conversation, messages } of this.#runs) if (conversation.id === id) this.stop(messages[0].id);
  }

  /** Ends answers of a conversation that another tab deleted, without saving them. @param {string} id */
  dropRemoved(id) {
    const left = new Set(this.store.get(id)?.messages);
    for (const run of this.#runs) {
      if (run.conversation.id !== id) continue;
      for (const message of run.messages) if (!left.has(message)) this.store.ownMessages.delete(message.id);
      run.messages = run.messages.filter((message) => left.has(message));
      if (run.messages.length) continue;
      run.answer.stop();
      this.#runs.delete(run);
      this.page.changed();
    }
  }

  /** @param {string} id */
  now(id) {
    this.#runOf(id)?.answer.now();
  }

  /** @param {Run} run */
  async #drive(run) {
    const { answer, conversation } = run;
    this.#runs.add(run);
    for (const { id } of run.messages) this.store.ownMessages.add(id);
    this.page.changed();
    this.page.announce("Reading your message", conversation);
    let savedAt = 0;
    let pausedAt = 0;
    for await (const event of answer.events()) {
      if (!this.#runs.has(run)) continue; // stopped meanwhile: the generator still has to clean up
      const { messages } = run;
      if (pausedAt)
        for (const message of messages.filter(isStreaming))
          message.pausedMs = (message.pausedMs ?? 0) + Date.now() - pausedAt;
      const hasBegun = messages.some(({ pieces }) => pieces);
      const isWaiting = event.kind === "status" && (event.state === "paused" || (event.state === "queued" && hasBegun));
      pausedAt = isWaiting ? Date.now() : 0;
      const end = this.#apply(run, event);
      if (end) {
        this.#runs.delete(run);
        return this.#end(run, messages.filter(isStreaming), end, event.kind === "error" ? event.error : null);
      }
      // Save at the first token: its time cannot be derived from later events.
      const begins = event.kind === "open" || ("choice" in event && messages.some(({ pieces }) => pieces === 1));
      if (Date.now() - savedAt < SAVE_INTERVAL_MS && !begins) continue;
      savedAt = Date.now();
      this.store.save(conversation, ...messages); // together, since all of them are resumed after the same event
    }
  }

  /**
   * Applies an event to the records and, if the answers are visible, to the page. Returns the final state, or null.
   * @param {Run} run @param {AnswerEvent} event
   */
  #apply(run, event) {
    const { conversation, messages } = run;
    const views = () => messages.filter(isStreaming).map((message) => this.page.viewOf(message));
    if ("id" in event && event.id) for (const message of messages) message.last = event.id;
    switch (event.kind) {
      case "open":
        for (const message of messages) message.stream = event.stream;
        for (const view of views()) view?.status({ state: "running" });
        this.page.changed();
        return null;
      case "status":
        for (const view of views()) view?.status(event);
        this.#setPaused(run, event.state === "paused" && event.cause === "client");
        if (event.state !== "running") this.page.announce(shortStatus(event), conversation);
        return null;
      case "delta":
      case "call":
      case "finish":
        this.#applyToChoice(
          run,
          messages.find((one) => (one.choice ?? 0) === event.choice),
          event,
        );
        return null;
      case "usage":
        for (const message of messages) message.usage = usageOf(message, event.usage, messages.length);
        return null;
      case "reconnecting":
        for (const view of views()) view?.reconnecting();
        this.page.announce("Reconnecting", conversation);
        return null;
      case "offline":
        for (const view of views()) view?.offline();
        this.page.announce("The server cannot be reached", conversation);
        return null;
      case "retry":
        for (const view of views()) view?.retrying(event.error, event.at);
        this.page.announce(`Waiting: ${event.error.message}`, conversation);
        return null;
      case "error":
        return "error";
      case "done":
        return "done";
    }
    return null;
  }

  /** @param {Run} run @param {boolean} paused */
  #setPaused({ messages }, paused) {
    if (Boolean(messages[0].paused) === paused) return;
    for (const message of messages) message.paused = paused;
    this.page.changed();
  }

  /**
   * Applies an event of one choice to its message; undefined if that was deleted.
   * @param {Run} run @param {Message | undefined} message @param {Extract<AnswerEvent, { choice: number }>} event
   */
  #applyToChoice(run, message, event) {
    if (!message) return;
    if (event.kind === "finish") {
      message.finish = event.reason;
      if (run.messages.length > 1) this.#end(run, [message], "done");
      return;
    }
    this.#setPaused(run, false);
    const now = (message.lastAt = Date.now());
    if (!message.resumed) message.firstAt ??= now; // after a reload the time of the first token is unknown
    message.pieces = (message.pieces ?? 0) + 1;
    if (event.kind === "delta" && event.thinking) {
      message.thinking = (message.thinking ?? "") + event.thinking;
      message.thinkingAt ??= now;
    }
    if (message.thinkingAt && (event.kind === "call" || event.text)) message.thoughtMs ??= now - message.thinkingAt;
    if (event.kind === "call") appendPiece(message, event.piece);
    else message.content += event.text;
    this.page.viewOf(message)?.show(message);
    this.page.announce(progress(message), run.conversation);
  }

  /**
   * Ends answers of a request: all that are left, or one whose choice has ended.
   * @param {Run} run @param {Message[]} messages @param {"done" | "stopped" | "error"} state @param {ApiError | null} [error]
   */
  #end(run, messages, state, error = null) {
    const { conversation } = run;
    for (const message of messages) {
      Object.assign(message, { state, paused: false });
      message.error = error && { message: error.message, code: error.code, status: error.status };
    }
    conversation.updated = Date.now();
    const isOver = !this.#runs.has(run);
    this.#ended = this.store.save(conversation, ...(isOver ? run.messages : messages));
    for (const message of isOver ? run.messages : messages) this.page.viewOf(message)?.show(message);
    if (!isOver) return;
    for (const { id } of run.messages) this.store.ownMessages.delete(id);
    this.page.changed();
    this.page.ended(conversation, run.messages);
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
