// Timeline under a finished answer: a bar of its phases and, on demand, each interval with its reason.
import { html, nothing } from "../vendor/lit/lit-html.js";
import { cacheLine, draftsLine, intervalReason, phaseDuration } from "./labels.js";
import { icon } from "./templates.js";

/** @import { Message, Timeline } from "./types.js" */

const MIN_PHASE_MS = 0.5; // ms; shorter phases are left out

export class TimelineView {
  #listed = ""; // stream of the listed intervals
  #lines = /** @type {unknown[]} */ ([]);

  /** @param {() => void} draw @param {(stream: string) => Promise<Timeline>} load */
  constructor(draw, load) {
    this.draw = draw;
    this.load = load;
  }

  /** @param {Message} message */
  template(message) {
    const totals = Object.entries(message.usage?.time_ms ?? {});
    if (message.state === "streaming" || !totals.length) return nothing;
    const text = totals
      .filter(([, ms]) => ms >= MIN_PHASE_MS)
      .map(([phase, ms]) => phaseDuration(phase, ms))
      .join(", ");
    const onToggle = (/** @type {Event} */ { target }) =>
      /** @type {HTMLDetailsElement} */ (target).open && this.#list(message);
    return html`<details class="timeline" @toggle=${onToggle}>
      <summary aria-label="Where the time went: ${text}" title=${text}>
        <span class="timeline-label">${icon("chevron")}Where the time went</span>
        <span class="timeline-bar" aria-hidden="true">${totals.map(
          ([phase, ms]) => html`<span data-phase=${phase} .style=${`flex-grow: ${ms}`}></span>`,
        )}</span>
      </summary>
      <ol>${this.#lines}</ol>
    </details>`;
  }

  /** @param {Message} message */
  async #list({ stream, usage }) {
    if (!stream || this.#listed === stream) return;
    this.#listed = stream;
    const line = (/** @type {string} */ phase, /** @type {number} */ ms, why = "") =>
      html`<li><i data-phase=${phase}></i>${phaseDuration(phase, ms)}${why && html`<span class="timeline-why">, ${why}</span>`}</li>`;
    try {
      const { choices, cache, ...tokens } = await this.load(stream);
      this.#lines = choices[0].intervals
        .filter(({ ms, left_engine }) => ms >= MIN_PHASE_MS || left_engine !== undefined)
        .map((interval) => line(interval.phase, interval.ms, intervalReason(interval)));
      if (choices[0].drafts) this.#lines.push(html`<li>${draftsLine(choices[0].drafts)}</li>`);
      if (cache) {
        const text = cacheLine(tokens.cached_tokens, tokens.prompt_tokens, cache);
        this.#lines.unshift(html`<li>${text}</li>`);
      }
    } catch {
      // The server no longer has the timeline or is unreachable; the totals from the answer still hold.
      this.#lines = Object.entries(usage?.time_ms ?? {}).map(([phase, ms]) => line(phase, ms));
    }
    this.draw();
  }
}
