// Gain of drafts in the last seconds, from the totals of snapshots. Pure.

/** @import { Snapshot } from "../types.js" */

const SPAN_SECONDS = 5;

export class Drafts {
  #points = /** @type {(Snapshot["drafts"] & { t: number })[]} */ ([]);

  /**
   * Returns the tokens that a step yields to a sequence with drafts, and the share of right drafts; null without any.
   * @param {Pick<Snapshot, "t" | "drafts">} snapshot
   */
  read({ t, drafts }) {
    const last = this.#points[this.#points.length - 1];
    if (last && (t < last.t || drafts.steps < last.steps)) this.#points = []; // the engine has restarted
    this.#points.push({ t, ...drafts });
    while (this.#points[0].t < t - SPAN_SECONDS) this.#points.shift();
    const [first] = this.#points;
    const steps = drafts.steps - first.steps;
    if (!steps) return null;
    const accepted = drafts.accepted - first.accepted;
    return { tokensAStep: 1 + accepted / steps, right: accepted / (drafts.drafted - first.drafted) };
  }
}
