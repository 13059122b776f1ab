// Connection to /v1/engine/events: with the key, with reconnects, and closed while the page is hidden.
import { ApiError, call } from "../api.js";
import { readParts } from "../sse.js";

/** @import { EngineEvent, Snapshot } from "../types.js" */

const STALL_MS = 15_000; // ms; even an idle engine sends a snapshot every two seconds

/**
 * @typedef {"connecting" | "live" | "asleep" | "lost" | "denied" | "loading" | "restarting" | "retrying" | "failed" | "stopped"} State
 *
 * @param {(snapshot: Snapshot) => void} onSnapshot @param {(state: State, reason?: string) => void} onState
 * @param {(event: EngineEvent) => void} onEngine called with the phase of an engine that is not ready
 * @returns {{ reconnect(): void }} reconnect tries again without waiting
 */
export function watch(onSnapshot, onState, onEngine) {
  const pause = { end: () => {} };
  follow(onSnapshot, onState, onEngine, pause);
  return { reconnect: () => pause.end() };
}

/**
 * @param {(snapshot: Snapshot) => void} onSnapshot @param {(state: State, reason?: string) => void} onState
 * @param {(event: EngineEvent) => void} onEngine
 * @param {{ end(): void }} pause `end` ends the present pause between two connections
 */
async function follow(onSnapshot, onState, onEngine, pause) {
  for (let wait = 500; ;) {
    if (document.hidden) {
      onState("asleep");
      await untilVisible();
    }
    const abort = new AbortController();
    const sleep = () => document.hidden && abort.abort();
    document.addEventListener("visibilitychange", sleep);
    try {
      const response = await call("/v1/engine/events", {
        signal: abort.signal,
        headers: { Accept: "text/event-stream" },
      });
      for await (const part of readParts(response, STALL_MS)) {
        if (part.kind !== "event") continue;
        wait = 500;
        if (part.event === "engine") onEngine(JSON.parse(part.data));
        else draw(onSnapshot, JSON.parse(part.data));
      }
    } catch (error) {
      const status = error instanceof ApiError ? error.status : 0;
      const isDenied = status === 401 || status === 403;
      if (!document.hidden) onState(isDenied ? "denied" : "lost", /** @type {Error} */ (error).message);
    } finally {
      document.removeEventListener("visibilitychange", sleep);
      abort.abort();
    }
    await new Promise((resolve) => {
      pause.end = () => resolve(undefined);
      setTimeout(resolve, wait);
    });
    wait = Math.min(8000, wait * 2);
  }
}

/**
 * Draws a snapshot. An error in drawing is not one of the connection: it is logged, and the next snapshot is drawn.
 * @param {(snapshot: Snapshot) => void} onSnapshot @param {Snapshot} snapshot
 */
function draw(onSnapshot, snapshot) {
  try {
    onSnapshot(snapshot);
  } catch (error) {
    reportError(error);
  }
}

const untilVisible = () =>
  new Promise((resolve) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve(undefined);
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
