// Stream of one answer: start, resume after a lost connection, wait on request of the server, stop. Yields events; no DOM.
import { ApiError, resumeAnswer, startAnswer, stopAnswer } from "./api.js";
import { RESUME_SECONDS } from "./env.js";
import { newId } from "./ids.js";
import { readParts, SseTooLong } from "./sse.js";

/** @import { AnswerRequest, CallPiece, Chunk, Status, Usage } from "./types.js" */

/**
 * @typedef {{ kind: "open", stream: string }
 *   | { kind: "status" } & Status
 *   | { kind: "delta", choice: number, text: string, thinking: string, id: string }
 *   | { kind: "call", choice: number, piece: CallPiece, id: string }
 *   | { kind: "finish", choice: number, reason: string, id: string }
 *   | { kind: "usage", usage: Usage, id: string }
 *   | { kind: "reconnecting", attempt: number }
 *   | { kind: "offline" }
 *   | { kind: "retry", error: ApiError, at: number }
 *   | { kind: "error", error: ApiError }
 *   | { kind: "done" }} AnswerEvent
 */

const STALL_MS = 45_000; // ms; the server pings every 15 s, and three missed pings mean a dead connection
const GIVE_UP_MS = (RESUME_SECONDS + 10) * 1000; // ms; slightly more than the server keeps an answer without a reader
const MAX_RETRY_MS = 8000; // maximum ms between two attempts
const MAX_RETRIES = 5;

export class Answer {
  #key = newId(); // of the request, which is sent again if its response is lost, and must run once
  #abort = new AbortController();
  #wake = () => {};
  #stopped = false;
  #seen = -1; // number of the newest received event, and its value when this connection began
  #floor = -1;
  #epoch = "";
  #complete = false;

  /**
   * @param {AnswerRequest | null} body the request, or null to resume only
   * @param {string | null} [stream]
   * @param {string | null} [last] id of the last saved event
   */
  constructor(body, stream = null, last = null) {
    this.body = body;
    this.stream = stream;
    this.last = last;
    this.#isNew(last ?? "");
    this.#floor = this.#seen;
  }

  /** Ends the answer on the page and on the server. Without a stream id yet, the request continues until it has one. */
  stop() {
    this.#stopped = true;
    if (this.stream) stopAnswer(this.stream);
    if (this.stream || !this.body) this.#abort.abort();
    this.#wake();
  }

  /** Ends a wait early, so that a retry or reconnect starts now. */
  now() {
    this.#wake();
  }

  /** @returns {AsyncGenerator<AnswerEvent, void, void>} */
  async *events() {
    let lostAt = 0;
    let attempt = 0;
    let retries = 0;
    try {
      for (;;) {
        try {
          const response = await this.#connect();
          if (this.#stopped) return this.stop();
          yield { kind: "open", stream: this.stream ?? "" };
          for await (const part of readParts(response, STALL_MS)) {
            lostAt = attempt = 0;
            const events = this.#read(part);
            yield* events;
            if (events.some((event) => event.kind === "done" || event.kind === "error")) return;
          }
          throw new TypeError("the connection closed before the answer was complete");
        } catch (error) {
          if (this.#stopped) return;
          if (this.#complete) return yield { kind: "done" };
          if (error instanceof SyntaxError || error instanceof SseTooLong)
            return yield { kind: "error", error: this.#unreadable() };
          if (error instanceof ApiError && !(this.stream && isRestoring(error))) {
            const wait = retryDelay(error);
            if (wait === null || ++retries > MAX_RETRIES)
              return yield { kind: "error", error: this.stream ? resumeError(error) : error };
            yield { kind: "retry", error, at: Date.now() + wait };
            await this.#sleep(wait);
          } else {
            lostAt ||= Date.now();
            if (Date.now() - lostAt > GIVE_UP_MS) return yield { kind: "error", error: unreachable(this.stream) };
            attempt++;
            yield this.stream ? { kind: "reconnecting", attempt } : { kind: "offline" };
            const named = error instanceof ApiError ? error.retryAfter : null;
            await this.#sleep(named ?? Math.min(MAX_RETRY_MS, 200 * 2 ** attempt));
          }
          if (this.#stopped) return;
        }
      }
    } finally {
      // A stop before the stream has an id must not abort: the server needs the id to end it. All other cases abort here.
      if (!this.#stopped || this.stream) this.#abort.abort();
    }
  }

  async #connect() {
    this.#floor = this.#seen;
    if (this.stream) return resumeAnswer(this.stream, this.last, this.#abort.signal);
    const response = await startAnswer(/** @type {AnswerRequest} */ (this.body), this.#key, this.#abort.signal);
    this.stream = response.headers.get("x-carousel-stream");
    return response;
  }

  /** @param {import("./sse.js").Part} part @returns {AnswerEvent[]} */
  #read(part) {
    if (part.kind === "comment") return readStatus(part.text);
    if (!this.#isNew(part.id)) return [];
    if (part.id) this.last = part.id;
    if (part.data === "[DONE]") return [{ kind: "done" }];
    const chunk = /** @type {Chunk} */ (JSON.parse(part.data));
    if (chunk.error) return [{ kind: "error", error: new ApiError(chunk.error) }];
    const events = /** @type {AnswerEvent[]} */ ([]);
    for (const { index: choice = 0, delta = {}, finish_reason: reason } of chunk.choices ?? []) {
      const text = delta.content ?? "";
      const thinking = delta.reasoning_content ?? "";
      if (text || thinking) events.push({ kind: "delta", choice, text, thinking, id: part.id });
      for (const piece of delta.tool_calls ?? []) events.push({ kind: "call", choice, piece, id: part.id });
      if (reason) events.push({ kind: "finish", choice, reason, id: part.id });
    }
    if (chunk.usage && !chunk.choices?.length) {
      this.#complete = true; // usage is the last event: if only [DONE] was lost, the answer is complete
      events.push({ kind: "usage", usage: chunk.usage, id: part.id });
    }
    return events;
  }

  #unreadable() {
    if (this.stream) stopAnswer(this.stream);
    return new ApiError({
      code: "unreadable",
      message: "This page could not read the rest of the answer. The text so far is kept.",
    });
  }

  /**
   * Returns whether an event is new; repetitions of a replay are dropped. Within one connection a number may occur twice:
   * one record can produce two events (usage and [DONE]). Ids are `<stream>.<epoch>.<seq>`.
   * @param {string} id
   */
  #isNew(id) {
    const [, epoch, seq] = /\.([^.]*)\.(\d+)$/.exec(id) ?? [];
    if (seq === undefined) return true;
    if (epoch === this.#epoch && Number(seq) <= this.#floor) return false;
    if (epoch !== this.#epoch) this.#floor = -1;
    this.#epoch = epoch;
    this.#seen = Number(seq);
    return true;
  }

  /** @param {number} ms */
  #sleep(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#wake(), ms);
      this.#wake = () => {
        clearTimeout(timer);
        removeEventListener("online", this.#wake);
        this.#wake = () => {};
        resolve(undefined);
      };
      addEventListener("online", this.#wake); // the network is back, so retry at once
    });
  }
}

/**
 * Returns the ms before an automatic retry, or null. Only a full or throttling server that names a time is retried.
 * @param {ApiError} error
 */
const retryDelay = (error) =>
  (error.status === 429 || error.status === 503) && error.retryAfter !== null ? error.retryAfter : null;

/** Returns whether a server that has just started will have a begun answer soon. @param {ApiError} error */
const isRestoring = (error) => error.status === 503 && error.retryAfter !== null;

/** Returns the error to show; the server may no longer have the answer, as after a restart. @param {ApiError} error */
const resumeError = (error) =>
  error.status === 404 || error.status === 410
    ? new ApiError({
        status: error.status,
        code: error.code,
        message: "The server no longer has this answer, for example after a restart. The text so far is kept.",
      })
    : error;

/** @param {string | null} stream */
const unreachable = (stream) =>
  new ApiError({
    code: stream ? "connection_lost" : "unreachable",
    message: stream
      ? "The connection was lost and could not be restored. The text so far is kept."
      : "The server cannot be reached.",
  });

/** @param {string} comment @returns {AnswerEvent[]} */
function readStatus(comment) {
  if (!comment.startsWith("carousel ")) return [];
  try {
    return [{ kind: "status", ...JSON.parse(comment.slice(9)) }];
  } catch {
    return []; // an unknown comment must not end an answer
  }
}
