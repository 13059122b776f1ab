// Timeline under a finished answer: a bar of its phases and, on demand, each interval with its reason.
import { h, icon } from "./dom.js";
import { intervalReason, phaseDuration } from "./labels.js";

/** @import { Message, Timeline } from "./types.js" */

const MIN_PHASE_MS = 0.5; // ms; shorter phases are left out

export class TimelineView {
  #listed = ""; // stream of the listed intervals

  message = /** @type {Message | null} */ (null);

  /** @param {(stream: string) => Promise<Timeline>} load */
  constructor(load) {
    this.load = load;
    this.list = h("ol");
    this.node = h("details", { class: "timeline", hidden: true });
    this.node.addEventListener("toggle", () => this.node.open && this.message && this.#list(this.message));
  }

  /** @param {Message} message */
  show(message) {
    this.message = message;
    const totals = Object.entries(message.usage?.time_ms ?? {});
    this.node.hidden = message.state === "streaming" || !totals.length;
    if (this.node.hidden) return;
    const bar = h("span", { class: "timeline-bar", "aria-hidden": "true" });
    for (const [phase, ms] of totals) {
      const part = h("span", { "data-phase": phase });
      part.style.setProperty("flex-grow", String(ms));
      bar.append(part);
    }
    const text = totals
      .filter(([, ms]) => ms >= MIN_PHASE_MS)
      .map(([phase, ms]) => phaseDuration(phase, ms))
      .join(", ");
    const label = h("span", { class: "timeline-label" }, icon("chevron"), "Where the time went");
    this.node.replaceChildren(
      h("summary", { "aria-label": `Where the time went: ${text}`, title: text }, label, bar),
      this.list,
    );
  }

  /** @param {Message} message */
  async #list({ stream, usage }) {
    if (!stream || this.#listed === stream) return;
    this.#listed = stream;
    const line = (/** @type {string} */ phase, /** @type {string} */ text, /** @type {string} */ why) =>
      h("li", {}, h("i", { "data-phase": phase }), text, why && h("span", { class: "timeline-why" }, `, ${why}`));
    try {
      const { choices } = await this.load(stream);
      const shown = choices[0].intervals.filter(
        ({ ms, left_engine }) => ms >= MIN_PHASE_MS || left_engine !== undefined,
      );
      this.list.replaceChildren(
        ...shown.map((interval) =>
          line(interval.phase, phaseDuration(interval.phase, interval.ms), intervalReason(interval)),
        ),
      );
    } catch {
      // The server no longer has the timeline or is unreachable; the totals from the answer still hold.
      this.list.replaceChildren(
        ...Object.entries(usage?.time_ms ?? {}).map(([phase, ms]) => line(phase, phaseDuration(phase, ms), "")),
      );
    }
  }
}
