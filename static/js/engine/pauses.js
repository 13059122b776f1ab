// Pause events, derived from consecutive snapshots. Pure.

/**
 * @typedef {{ kind: "paused" | "resumed" | "gone" | "unseen", t: number, request?: string, class?: string, by?: string, byClass?: string,
 *   mechanism?: string, after?: number, count?: number }} PauseEvent
 */

export class Pauses {
  #parked = /** @type {Map<string, { t: number, class: string }>} */ (new Map());
  #counted = -1;

  /** @param {any} snapshot @returns {PauseEvent[]} oldest first */
  read({ t, slots, paused, preemptions }) {
    const events = /** @type {PauseEvent[]} */ ([]);
    const seated = new Map(slots.filter(Boolean).map((slot) => [slot.request, slot.class]));
    const now = new Set(paused.map(({ request }) => request));
    for (const [request, { t: since, class: kind }] of this.#parked) {
      if (now.has(request)) continue;
      this.#parked.delete(request);
      events.push({ kind: seated.has(request) ? "resumed" : "gone", t, request, class: kind, after: t - since });
    }
    const first = this.#counted < 0;
    let fresh = 0;
    for (const { request, class: kind, by, mechanism } of paused) {
      if (this.#parked.has(request)) continue;
      this.#parked.set(request, { t, class: kind });
      fresh++;
      if (first) continue; // paused before the page was opened: listed, but with unknown time
      events.push({ kind: "paused", t, request, class: kind, by, byClass: seated.get(by), mechanism });
    }
    const total = Object.values(preemptions).reduce((sum, count) => sum + count, 0);
    // The engine counts every pause; those that began and ended between two snapshots are reported as missed.
    const missed = first ? 0 : total - this.#counted - fresh;
    if (missed > 0) events.push({ kind: "unseen", t, count: missed });
    this.#counted = total;
    return events;
  }
}

const KEPT = { swap: "swapped to the host", partial: "kept while there is memory", recompute: "to be computed again" };

/** @param {PauseEvent} event */
export function sentence({ kind, request, class: of, by, byClass, mechanism, after = 0, count }) {
  if (kind === "paused") {
    const whom = byClass ? ` for ${byClass} ${by}` : by ? ` for ${by}` : ", memory ran short";
    return `paused ${of} ${request}${whom}, ${KEPT[mechanism] ?? mechanism}`;
  }
  if (kind === "resumed") return `resumed ${of} ${request} after ${after.toFixed(1)} s`;
  if (kind === "gone") return `${of} ${request} left after ${after.toFixed(1)} s`;
  return count === 1 ? "1 pause was too short to be seen here" : `${count} pauses were too short to be seen here`;
}
