// Pause events, derived from consecutive snapshots. Pure.
import { MECHANISM_TEXTS } from "../labels.js";

/** @import { ClassName, Mechanism, Snapshot } from "../types.js" */

/**
 * @typedef {{ t: number, request: string, class: ClassName }} PausedRequest
 * @typedef {PausedRequest & { kind: "paused", by: ClassName | null, mechanism: Mechanism }
 *   | PausedRequest & { kind: "resumed" | "left", after: number }
 *   | { kind: "missed", t: number, count: number, class?: undefined }} PauseEvent
 */

export class Pauses {
  #paused = /** @type {Map<string, { t: number, class: ClassName }>} */ (new Map());
  #total = -1;

  /** @param {Pick<Snapshot, "t" | "slots" | "paused" | "preemptions">} snapshot @returns {PauseEvent[]} oldest first */
  read({ t, slots, paused, preemptions }) {
    const events = /** @type {PauseEvent[]} */ ([]);
    const running = new Set(slots.map((slot) => slot?.request));
    const now = new Set(paused.map(({ request }) => request));
    for (const [request, { t: since, class: kind }] of this.#paused) {
      if (now.has(request)) continue;
      this.#paused.delete(request);
      events.push({ kind: running.has(request) ? "resumed" : "left", t, request, class: kind, after: t - since });
    }
    const first = this.#total < 0;
    let added = 0;
    for (const { request, class: kind, by, mechanism } of paused) {
      if (this.#paused.has(request)) continue;
      this.#paused.set(request, { t, class: kind });
      added++;
      if (first) continue; // paused before the page was opened: listed, but with unknown time
      events.push({ kind: "paused", t, request, class: kind, by, mechanism });
    }
    const total = Object.values(preemptions).reduce((sum, count) => sum + count, 0);
    // The engine counts every pause; those that began and ended between two snapshots are reported as missed.
    const missed = first ? 0 : total - this.#total - added;
    if (missed > 0) events.push({ kind: "missed", t, count: missed });
    this.#total = total;
    return events;
  }
}

/** @param {PauseEvent} event */
export function describePause(event) {
  if (event.kind === "missed")
    return event.count === 1
      ? "1 pause was too short to be listed"
      : `${event.count} pauses were too short to be listed`;
  const name = `${event.class} ${event.request}`;
  if (event.kind === "paused") {
    const beneficiary = event.by ? ` for ${event.by}` : ", memory ran short";
    return `paused ${name}${beneficiary}, ${MECHANISM_TEXTS[event.mechanism] ?? event.mechanism}`;
  }
  if (event.kind === "left") return `${name} left after ${event.after.toFixed(1)}\u00a0s`;
  return `resumed ${name} after ${event.after.toFixed(1)}\u00a0s`;
}
