// Line under an answer that shows its state and the reason for a wait.
import { html, nothing, svg } from "../vendor/lit/lit-html.js";
import { describe, reasoningLabel } from "./labels.js";
import { button } from "./templates.js";

/** @import { Message, Status } from "./types.js" */

/**
 * What the line shows. `retry`: it has a button that tries at once; `again`: milliseconds after which it changes by itself.
 * @typedef {{ kind: string, head: string, why: string, retry?: boolean, again?: number }} Line
 */

const ESTIMATE_INTERVAL_MS = 1500;

export class WaitLine {
  #line = /** @type {(() => Line) | null} */ (null);
  #timer = 0;
  #asked = 0;
  #estimate = { head: "", text: "" }; // of a place in line

  /** @param {() => void} draw called when the line has changed by itself @param {() => Promise<{ wait_ms?: number }>} ask returns the server's estimate */
  constructor(draw, ask) {
    this.draw = draw;
    this.ask = ask;
  }

  get isShown() {
    return this.#line !== null;
  }

  hide() {
    this.#line = null;
  }

  /** @param {Status} status */
  status(status) {
    const { kind, head, why } = describe(status);
    this.#line = () => ({ kind, head, why: why + (head === this.#estimate.head ? this.#estimate.text : "") });
    if (kind === "queued" && status.position) this.#askEstimate(head);
  }

  /** Adds the server's estimate to a place in line. @param {string} head */
  async #askEstimate(head) {
    if (Date.now() - this.#asked < ESTIMATE_INTERVAL_MS) return;
    this.#asked = Date.now();
    const { wait_ms: ms } = await this.ask().catch(() => ({ wait_ms: 0 }));
    this.#estimate = { head, text: ms ? `; about ${Math.max(1, Math.round(ms / 1000))} s` : "" };
    this.draw();
  }

  /** @param {Message} message */
  thinking(message) {
    this.#line = () => ({ kind: "thinking", head: reasoningLabel(message, Date.now()), why: "", again: 1000 });
  }

  reconnecting() {
    this.#line = () => ({ kind: "reconnecting", head: "Reconnecting", why: "the text so far is kept" });
  }

  offline() {
    const why = "Your message is sent as soon as it is back";
    this.#line = () => ({ kind: "offline", head: "The server cannot be reached", why, retry: true });
  }

  /** @param {{ message: string }} error @param {number} at */
  retrying(error, at) {
    const why = error.message.replace(/\.$/, "");
    this.#line = () => {
      const left = Math.max(0, Math.ceil((at - Date.now()) / 1000));
      const head = left ? `Trying again in ${left} s` : "Trying again";
      return { kind: "retry", head, why, retry: true, again: left && 250 };
    };
  }

  /** Returns the template, and draws it again when it changes by itself. @param {() => void} retryNow */
  template(retryNow) {
    clearTimeout(this.#timer);
    if (!this.#line) return nothing;
    const { kind, head, why, retry = false, again = 0 } = this.#line();
    if (again) this.#timer = window.setTimeout(this.draw, again);
    return html`<div class="wait" data-kind=${kind}>
      ${RING}<span class="wait-text"
        ><b>${head}</b><span class="wait-why">${why && `${retry ? ". " : ", "}${why}`}</span></span
      >${retry ? button("Try now", retryNow) : nothing}
    </div>`;
  }
}

/** Small ring of the brand: it turns while an answer waits and stops while it is paused. */
const RING = html`<svg class="wait-ring" viewBox="0 0 24 24" aria-hidden="true"><g>${Array.from(
  { length: 8 },
  (_, i) => {
    const angle = (i / 8) * 2 * Math.PI - Math.PI / 2;
    const [x, y] = [12 + 8.2 * Math.cos(angle), 12 + 8.2 * Math.sin(angle)];
    return svg`<circle cx=${x} cy=${y} r="1.9" class=${i ? nothing : "lit"}></circle>`;
  },
)}</g></svg>`;
