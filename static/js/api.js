// HTTP client of the server: URLs, the API key, and the form of errors. Independent of the page.
import { RESUME_SECONDS, url } from "./env.js";

/** @import { AnswerRequest, ErrorBody, ErrorFields, Model, RequestChange, ServerTools, SharedRow, SharedRows, Timeline, Turn, WarmRequest } from "./types.js" */

const KEY = "carousel.key";

export class ApiError extends Error {
  /** @param {ErrorFields & { status?: number, retryAfter?: number | null, body?: ErrorBody | null }} fields */
  constructor({ message, status = 0, type = "", code = null, param = null, retryAfter = null, body = null }) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.type = type;
    this.code = code;
    this.param = param;
    this.retryAfter = retryAfter;
    this.body = body;
  }
}

let memoryKey = ""; // used only if sessionStorage is forbidden
export function apiKey() {
  try {
    return sessionStorage.getItem(KEY) ?? memoryKey;
  } catch {
    return memoryKey;
  }
}

/** @param {string} key */
export function setApiKey(key) {
  memoryKey = key;
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Kept in memory while the page is open.
  }
}

// Statuses that a proxy returns if its upstream does not respond (52x: Cloudflare).
const UNREACHABLE_STATUSES = new Set([502, 503, 504, 520, 521, 522, 523, 524]);

/**
 * Returns a successful response. Throws ApiError if the server refused the request, TypeError (as `fetch` does) if it was not
 * reached.
 * @param {string} path @param {RequestInit} [init] @returns {Promise<Response>}
 */
export async function call(path, init = {}) {
  const headers = new Headers(init.headers);
  if (apiKey()) headers.set("Authorization", `Bearer ${apiKey()}`);
  const response = await fetch(url(path), { ...init, headers, cache: "no-store", credentials: "same-origin" });
  if (response.ok) return response;
  const error = await readError(response);
  if (error.status === 401)
    error.message = apiKey() ? "The server refused this API key." : "The server needs an API key.";
  if (UNREACHABLE_STATUSES.has(error.status) && !error.body?.error && error.retryAfter === null)
    throw new TypeError(error.message);
  throw error;
}

/** @param {Response} response */
export async function readError(response) {
  const text = await response.text().catch(() => "");
  let body = /** @type {ErrorBody | null} */ (null);
  try {
    body = JSON.parse(text);
  } catch {
    // A proxy may answer with its own page.
  }
  const error = body?.error ?? {};
  const message = typeof error.message === "string" && error.message ? error.message : statusText(response);
  return new ApiError({
    message,
    status: response.status,
    type: error.type,
    code: error.code,
    param: error.param,
    retryAfter: retryAfter(response.headers),
    body,
  });
}

/** @param {Response} response */
const statusText = (response) => `The server answered ${response.status} ${response.statusText}`.trim() + ".";

/** Returns the milliseconds to wait, or null if the server named none. @param {Headers} headers */
export function retryAfter(headers) {
  const exact = Number.parseFloat(headers.get("retry-after-ms") ?? "");
  if (exact >= 0) return exact;
  const value = headers.get("retry-after");
  if (!value) return null;
  const ms = /^\d+(\.\d+)?$/.test(value.trim()) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return Number.isFinite(ms) ? Math.max(0, ms) : null;
}

/** @returns {Promise<Model[]>} */
export const listModels = async () => (await (await call("/v1/models")).json()).data;

/**
 * Starts an answer, or returns the one that was started with the same key.
 * @param {AnswerRequest} body @param {string} key @param {AbortSignal} signal
 */
export const startAnswer = (body, key, signal) =>
  call("/v1/chat/completions", {
    method: "POST",
    signal,
    body: JSON.stringify(body),
    headers: {
      "Content-Type": "application/json",
      Accept: "text/event-stream",
      "X-Carousel-Resume": String(RESUME_SECONDS),
      "Idempotency-Key": key,
    },
  });

/**
 * Resumes an answer after the last received event.
 * @param {string} stream @param {string | null} last @param {AbortSignal} signal
 */
export const resumeAnswer = (stream, last, signal) =>
  call(`/v1/streams/${encodeURIComponent(stream)}`, {
    signal,
    headers: { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) },
  });

/**
 * Returns the tokens of a conversation and the context length of the model.
 * @param {Turn[]} messages @returns {Promise<{ count: number, max_model_len: number }>}
 */
export const countTokens = async (messages) => (await post("/tokenize", { messages })).json();

/** Returns the tokens of a text. @param {string} prompt @returns {Promise<number>} */
export const countTextTokens = async (prompt) => (await (await post("/tokenize", { prompt })).json()).count;

/** @param {string} path @param {unknown} body @param {AbortSignal} [signal] */
const post = (path, body, signal) =>
  call(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal });

/** Returns the text of an answer that is not streamed. @param {object} body @returns {Promise<string>} */
export const complete = async (body) =>
  (await (await post("/v1/chat/completions", body)).json()).choices[0].message.content ?? "";

/** Returns rows of conversations that have changed after a number. @param {number} after @returns {Promise<SharedRows>} */
export const getRows = async (after) => (await call(`/v1/page/rows?after=${after}`)).json();

/** Joins rows of conversations with those of the server. @param {SharedRow[]} rows */
export const sendRows = (rows) => post("/v1/page/rows", { rows });

/**
 * Returns the requests that the server knows, with what caches have of them.
 * @param {string[]} requests @returns {Promise<Record<string, WarmRequest>>}
 */
export const askWarm = async (requests) => (await (await post("/v1/page/warm", { requests })).json()).requests;

/** Returns the tools of MCP servers. @returns {Promise<ServerTools[]>} */
export const listServerTools = async () => (await (await call("/v1/page/tools")).json()).data;

/**
 * Runs a tool of an MCP server, until it ends or `signal` cancels it.
 * @param {{ server: string, name: string, arguments: object }} body @param {AbortSignal} signal
 * @returns {Promise<{ content: string, is_error: boolean }>}
 */
export const callServerTool = async (body, signal) => (await post("/v1/page/tools/call", body, signal)).json();

/** Returns the timeline of an answer. @param {string} stream @returns {Promise<Timeline>} */
export const getTimeline = async (stream) => (await call(`/v1/requests/${encodeURIComponent(stream)}`)).json();

/** Pauses or resumes an answer, or moves it to another tier. @param {string} stream @param {RequestChange} change */
export const changeRequest = (stream, change) => post(`/v1/requests/${encodeURIComponent(stream)}`, change);

/**
 * Stops an answer, which frees its slot at once. With `keepalive` the request survives the page.
 * @param {string} stream
 */
export const stopAnswer = (stream) =>
  call(`/v1/streams/${encodeURIComponent(stream)}`, { method: "DELETE", keepalive: true }).then(
    () => {},
    () => {},
  );
