// Smoothing of rates: a slow step makes a rate jump between two snapshots, so the page shows the mean of about a second.

/** @import { Snapshot } from "../types.js" */

const SMOOTHING_SECONDS = 1;

export class RateSmoother {
  #t = -1;
  #decode = 0;
  #prefill = 0;
  #busy = 0;

  /** Returns the snapshot with averaged rates; all other fields are unchanged. @param {Snapshot} snapshot */
  read(snapshot) {
    const { t, tokens_per_s: decode, prefill_tokens_per_s: prefill, busy = 0 } = snapshot;
    const share = this.#t < 0 || t < this.#t ? 1 : 1 - Math.exp(-(t - this.#t) / SMOOTHING_SECONDS);
    this.#t = t;
    this.#decode += (decode - this.#decode) * share;
    this.#prefill += (prefill - this.#prefill) * share;
    this.#busy += (busy - this.#busy) * share;
    const floor = (/** @type {number} */ value) => (value < 0.5 ? 0 : value);
    return {
      ...snapshot,
      tokens_per_s: floor(this.#decode),
      prefill_tokens_per_s: floor(this.#prefill),
      busy: this.#busy,
    };
  }
}
