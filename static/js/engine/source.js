// Connection to /v1/engine/events: with the key, with reconnects, and closed while the page is hidden.
import { ApiError, call } from "../api.js";
import { readParts } from "../sse.js";

/** @import { Snapshot } from "../types.js" */

const STALL_MS = 15_000; // ms; even an idle engine sends a snapshot every two seconds

/**
 * @param {(snapshot: Snapshot) => void} onSnapshot
 * @param {(state: "connecting" | "live" | "asleep" | "lost" | "denied" | "loading" | "restarting" | "failed" | "stopped") => void} onState
 */
export async function watch(onSnapshot, onState) {
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
      if (!document.hidden) onState(status === 401 || status === 403 ? "denied" : "lost");
    } finally {
      document.removeEventListener("visibilitychange", sleep);
      abort.abort();
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
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
