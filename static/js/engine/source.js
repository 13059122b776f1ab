// Owns the connection to /v1/engine/events: with the key, with reconnects, and asleep while nobody looks at the page.
import { call } from "../api.js";
import { readParts } from "../sse.js";

const PATIENCE = 15_000; // even an idle engine speaks every two seconds

/**
 * @param {(snapshot: any) => void} onSnapshot
 * @param {(state: "connecting" | "live" | "asleep" | "lost" | "denied" | "loading" | "restarting" | "failed" | "stopped") => void} onState
 */
export async function watch(onSnapshot, onState) {
  for (let wait = 500; ; ) {
    if (document.hidden) {
      onState("asleep");
      await seen();
    }
    const abort = new AbortController();
    const sleep = () => document.hidden && abort.abort();
    document.addEventListener("visibilitychange", sleep);
    try {
      const response = await call("/v1/engine/events", { signal: abort.signal, headers: { Accept: "text/event-stream" } });
      for await (const part of readParts(response, PATIENCE)) {
        if (part.kind !== "event") continue;
        wait = 500;
        if (part.event === "engine") {
          onState(JSON.parse(part.data).phase);
          continue;
        }
        onState("live");
        deliver(onSnapshot, JSON.parse(part.data));
      }
    } catch (error) {
      const status = /** @type {any} */ (error).status;
      if (!document.hidden) onState(status === 401 || status === 403 ? "denied" : "lost");
    } finally {
      document.removeEventListener("visibilitychange", sleep);
      abort.abort();
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(8000, wait * 2);
  }
}

/** A fault in drawing is ours, not the connection's: it goes to the console and the next snapshot has its chance. */
function deliver(onSnapshot, snapshot) {
  try {
    onSnapshot(snapshot);
  } catch (error) {
    reportError(error);
  }
}

const seen = () =>
  new Promise((resolve) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve(undefined);
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
