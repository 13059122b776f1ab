// Pause events, derived from consecutive snapshots. Pure.
import { MECHANISM_TEXTS } from "../labels.js";

/**
 * @typedef {{ kind: "paused" | "resumed" | "left" | "missed", t: number, request?: string, class?: string, by?: string, byClass?: string,
 *   mechanism?: string, after?: number, count?: number }} PauseEvent
 */

export class Pauses {
  #paused = /** @type {Map<string, { t: number, class: string }>} */ (new Map());
  #total = -1;

  /** @param {any} snapshot @returns {PauseEvent[]} oldest first */
  read({ t, slots, paused, preemptions }) {
    const events = /** @type {PauseEvent[]} */ ([]);
    const running = new Map(slots.filter(Boolean).map((slot) => [slot.request, slot.class]));
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
      events.push({ kind: "paused", t, request, class: kind, by, byClass: running.get(by), mechanism });
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
export function describePause({ kind, request, class: of, by, byClass, mechanism, after = 0, count }) {
  if (kind === "paused") {
    const beneficiary = byClass ? ` for ${byClass} ${by}` : by ? ` for ${by}` : ", memory ran short";
    return `paused ${of} ${request}${beneficiary}, ${MECHANISM_TEXTS[mechanism] ?? mechanism}`;
  }
  if (kind === "resumed") return `resumed ${of} ${request} after ${after.toFixed(1)} s`;
  if (kind === "left") return `${of} ${request} left after ${after.toFixed(1)} s`;
  return count === 1 ? "1 pause was too short to be listed" : `${count} pauses were too short to be listed`;
}
