// Texts for the states of an answer and of the engine, in one place for consistency. Pure.

/** @import { CacheNote, Drafts, Interval, Message, Status } from "./types.js" */

/** Reasons for a wait, worded as in `carousel explain` (app/cli/explain.py). */
export const CAUSE_TEXTS = /** @type {Record<string, string>} */ ({
  step: "waiting for the next step",
  prompt: "prompt computed by the first choice",
  order: "other requests first",
  slots: "all slots occupied",
  pages: "KV cache full",
  budget: "token budget of the step used up",
  pace: "prompt read slowly, for the pace of running answers",
  fairness: "another tenant's turn",
  deadline: "earlier deadline of another request",
  batch: "batch not complete",
  restart: "engine restarted",
  client: "paused by its client",
  trial: "paused while a request that may have ended an engine was tried alone",
  body: "request body incomplete",
  grammar: "grammar of the answer being compiled",
  disk: "conversation being read from disk",
  texts: "long texts of other requests tokenized first",
  reader: "complete, not yet read by the client",
});

/** Reasons why an engine lost a request, worded as in `carousel explain`. */
const MOVE_TEXTS = /** @type {Record<string, string>} */ ({
  died: "died",
  drained: "was drained",
  busy: "had no slot",
});

/** Methods by which a paused request keeps its computed tokens, worded as in `carousel explain`. */
export const MECHANISM_TEXTS = /** @type {Record<string, string>} */ ({
  swap: "pages kept in host memory",
  partial: "pages kept while memory lasts",
  recompute: "to be recomputed",
});

/** Reasons why the cache lacks a part of a prompt, worded as in `carousel explain`. */
export const CACHE_TEXTS = /** @type {Record<string, string>} */ ({
  evicted: "evicted",
  host: "evicted from host memory",
  share: "given up, beyond the share of conversations that are kept",
  expired: "given up, after the time for which conversations are kept",
  copy: "computed again, which took less time than copying them from host memory",
  disk: "computed again, which took less time than reading them from disk",
  logprobs: "computed again, for the log-probabilities of the prompt",
  unknown: "this engine had no earlier request of this client",
});

/** Returns the ordinal of a number: 1 -> 1st. @param {number} n */
export function ordinal(n) {
  const tens = n % 100;
  const suffix = tens > 10 && tens < 14 ? "th" : (["th", "st", "nd", "rd"][n % 10] ?? "th");
  return `${n}${suffix}`;
}

/**
 * Returns the text of the waiting line: the state in bold, then the reason.
 * @param {Status} status
 * @returns {{ kind: string, head: string, why: string }}
 */
export function describe(status) {
  if (status.cause === "restart") return { kind: "paused", head: "The engine is restarting", why: "no text is lost" };
  if (status.state === "queued") {
    const head =
      status.position === 1 ? "Next in line" : status.position ? `${ordinal(status.position)} in line` : "In line";
    return { kind: "queued", head, why: CAUSE_TEXTS[status.cause ?? ""] ?? "" };
  }
  if (status.cause === "client") return { kind: "paused", head: "Paused", why: "it goes on when you resume it" };
  if (status.state === "paused") {
    const beneficiary = status.by ? ` for a request of class ${status.by}` : ", memory ran short";
    return { kind: "paused", head: `Paused${beneficiary}`, why: "it resumes at the same word" };
  }
  if (status.cause === "trial") return { kind: "paused", head: "Paused", why: CAUSE_TEXTS.trial ?? "" };
  return { kind: "running", head: "Reading your message", why: CAUSE_TEXTS[status.cause ?? ""] ?? "" };
}

/** Returns the status of a waiting answer for screen readers. @param {Status} status */
export function shortStatus({ state, cause, position }) {
  if (cause === "restart") return "The engine is restarting";
  if (state === "paused" || (state === "running" && cause === "trial")) return "Paused";
  return position ? `${ordinal(position)} in line` : "In line";
}

/**
 * Returns the time to the first token, speed, time paused, tokens, and how many of the prompt were in the cache.
 * @param {Message} message @returns {string[]}
 */
export function figures(message) {
  const parts = [];
  if (message.firstAt && message.sentAt) parts.push(`${seconds(message.firstAt - message.sentAt)} to first token`);
  const tokens = message.usage?.completion_tokens ?? message.pieces ?? 0;
  const streamed = (message.lastAt ?? 0) - (message.firstAt ?? 0) - (message.pausedMs ?? 0);
  // After a reload part of the time passed without a reader; then only the server's decode time is known.
  const span = message.resumed ? (message.usage?.time_ms?.decode ?? 0) : streamed;
  if (tokens > 3 && span > 50) parts.push(`${decimal(((tokens - 1) * 1000) / span)} tokens/s`);
  if ((message.pausedMs ?? 0) > 50) parts.push(`paused ${seconds(message.pausedMs ?? 0)}`);
  if (message.usage) parts.push(`${tokens} ${tokens === 1 ? "token" : "tokens"}`);
  const { prompt_tokens: prompt = 0, prompt_tokens_details: details } = message.usage ?? {};
  const shared = details?.cached_tokens ?? 0;
  if (shared) parts.push(`${count(prompt - shared)} read, ${count(shared)} shared`);
  return parts;
}

const PHASES = /** @type {Record<string, string>} */ ({
  intake: "received",
  queued: "queued",
  prefill: "read the prompt",
  decode: "wrote the answer",
  paused: "paused",
  swapping: "swapped in",
  delivery: "delivered",
});

/** Returns a phase with its duration, such as "written 1.2 s". @param {string} phase @param {number} ms */
export const phaseDuration = (phase, ms) => `${PHASES[phase] ?? phase} ${seconds(ms)}`;

/** Returns the reason for an interval of an answer's timeline; often empty.
 * @param {Interval} interval */
export function intervalReason({ phase, cause, by, mechanism, why, ...move }) {
  if (move.left_engine !== undefined) {
    const reason = MOVE_TEXTS[move.move_reason ?? ""] ?? move.move_reason;
    const activity = move.was_computing ? "while computing it" : "while it waited there";
    const successor = move.next_engine === null ? "" : `; it went on in engine ${move.next_engine}`;
    return `engine ${move.left_engine} ${reason} ${activity}${successor}`;
  }
  const reason = CAUSE_TEXTS[cause ?? ""] ?? "";
  if (phase !== "paused" || cause === "client") return reason;
  const beneficiary = by ? `for a request of class ${by}` : "as memory ran short";
  return `${beneficiary}, ${MECHANISM_TEXTS[mechanism ?? ""] ?? mechanism}${why ? `: ${why}` : ""}`;
}

/**
 * Returns what the cache had of a prompt, and why not more, as `carousel explain` does.
 * @param {number} cached @param {number} prompt @param {CacheNote} note
 */
export function cacheLine(cached, prompt, { continues, reason, by, ...note }) {
  let text = `${count(cached)} of ${count(prompt)} prompt tokens were in the cache`;
  if (cached && note.kept_seconds !== null) text += `, kept for ${count(Math.max(1, Math.floor(note.kept_seconds)))} s`;
  if (reason === "unknown") return cached ? text : `${text}: ${CACHE_TEXTS[reason]}`;
  if (reason) {
    const beneficiary = by ? ` for a request of class ${by}` : "";
    text += `; ${count(note.expected_tokens - cached)} more: ${CACHE_TEXTS[reason] ?? reason}${beneficiary}`;
  }
  if (note.differs_at === null) return text;
  const position = `token ${count(note.differs_at)}`;
  if (!continues) return `${text}; the prompt differs from that of an earlier request after ${position}`;
  const [before, after] = [note.before, note.after].map((part) => JSON.stringify(part));
  return `${text}; the prompt differs from that of request ${continues} at ${position}: ${before} became ${after}`;
}

/**
 * Returns how many tokens the steps of a choice yielded, and which drafts became tokens, as `carousel explain` does.
 * @param {Drafts} drafts
 */
export function draftsLine({ tokens, steps, accepted }) {
  const right = Object.entries(accepted)
    .filter(([, number]) => number)
    .map(([source, number]) => `${source} ${count(number)}`);
  const mean = steps ? `${(tokens / steps).toFixed(1)} a step; ` : "";
  return `decode: ${count(tokens)} tokens in ${count(steps)} steps (${mean}${right.join(", ") || "no draft was right"})`;
}

/** Returns the duration of an answer's reasoning, running or finished. @param {Message} message @param {number} now */
export function reasoningLabel({ thinkingAt, thoughtMs }, now) {
  if (thoughtMs !== undefined) return `Thought for ${Math.max(1, Math.round(thoughtMs / 1000))} s`;
  return thinkingAt ? `Thinking (${Math.round((now - thinkingAt) / 1000)} s)` : "Thinking";
}

/** Whether an answer in progress is still inside of its reasoning. @param {Message} message */
export const isThinking = ({ state, thinking, content, calls }) =>
  state === "streaming" && Boolean(thinking) && !content && !calls?.length;

/** Whether the model can continue an ended answer. @param {Message} message */
export const isUnfinished = ({ content, thinking, calls, state, finish }) =>
  Boolean(content || thinking) &&
  !calls?.length && // the server cannot continue inside of a call
  (state === "error" || state === "stopped" || (state === "done" && finish === "length"));

/** @param {Message} message */
export function ending(message) {
  if (message.state === "stopped") return "stopped";
  if (message.finish === "length") return "cut at the token limit";
  if (message.finish === "content_filter") return "filtered";
  return "";
}

/** Returns the text of an error for the user, in whole sentences. @param {import("./types.js").MessageError} error */
export function errorText({ message, code }) {
  if (code !== "context_length_exceeded") return sentence(message);
  const limit = /max_tokens/.test(message) ? ", or lower the token limit in the settings" : "";
  return (
    `This conversation does not fit the model's context. ${sentence(message)} ` +
    `Leave out the oldest messages, begin a new conversation${limit || ", or shorten your message"}.`
  );
}

/** @param {string} text */
const sentence = (text) => text.replace(/^\p{Ll}/u, (letter) => letter.toUpperCase()).replace(/[^.!?…]$/, "$&.");

/** @param {number} ms */
const seconds = (ms) =>
  ms < 995 ? `${Math.max(0, Math.round(ms))} ms` : `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)} s`;
/** @param {number} value */
const count = (value) => value.toLocaleString("en-US");
/** @param {number} value */
const decimal = (value) => (value < 9.95 ? value.toFixed(1) : String(Math.round(value)));

/** Returns the progress of an answer for screen readers. @param {Message} message */
export const progress = ({ calls, content }) => (calls?.length ? "Calling a tool" : content ? "Answering" : "Thinking");

/** Whether an answer is in progress. @param {Message} message */
export const isStreaming = ({ state }) => state === "streaming";
