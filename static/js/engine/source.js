// Connection to /v1/engine/events: with the key, with reconnects, and closed while the page is hidden.
import { ApiError, call } from "../api.js";
import { readParts } from "../sse.js";

/** @import { Snapshot } from "../types.js" */

const STALL_MS = 15_000; // ms; even an idle engine sends a snapshot every two seconds

/**
 * @typedef {"connecting" | "live" | "asleep" | "lost" | "denied" | "loading" | "restarting" | "failed" | "stopped"} State
 *
 * @param {(snapshot: Snapshot) => void} onSnapshot @param {(state: State, reason?: string) => void} onState
 * @returns {{ reconnect(): void }} reconnect tries again without waiting
 */
export function watch(onSnapshot, onState) {
  const pause = { end: () => {} };
  follow(onSnapshot, onState, pause);
  return { reconnect: () => pause.end() };
}

/**
 * @param {(snapshot: Snapshot) => void} onSnapshot @param {(state: State, reason?: string) => void} onState
 * @param {{ end(): void }} pause `end` ends the present pause between two connections
 */
async function follow(onSnapshot, onState, pause) {
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
        if (part.event === "engine") {
          onState(JSON.parse(part.data).phase);
          continue;
        }
        onState("live");
        draw(onSnapshot, JSON.parse(part.data));
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
