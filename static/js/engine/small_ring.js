// Small ring of one of several engines: its slots by the class of their requests, and the engine's number.
import { svg } from "../dom.js";

/** @import { ClassName, Snapshot } from "../types.js" */

const CLASSES = /** @type {ClassName[]} */ (["interactive", "standard", "batch"]);
const RADIUS = 16;

export class SmallRing {
  #arcs = new Map(CLASSES.map((name) => [name, svg("circle", { r: RADIUS, "data-class": name, class: "arc" })]));

  /** @param {number} engine */
  constructor(engine) {
    this.node = svg(
      "svg",
      { viewBox: "-20 -20 40 40", "aria-hidden": "true" },
      svg("circle", { r: RADIUS, class: "track" }),
      ...this.#arcs.values(),
      svg("text", { y: 4.5 }, String(engine)),
    );
    this.clear();
  }

  /** Draws the occupied slots, and returns a description. @param {Snapshot} snapshot */
  show({ slots, waiting }) {
    let before = 0;
    for (const [name, arc] of this.#arcs) {
      const taken = slots.filter((slot) => slot?.class === name).length;
      arc.setAttribute("pathLength", String(slots.length));
      arc.setAttribute("stroke-dasharray", `${taken} ${slots.length}`);
      arc.setAttribute("stroke-dashoffset", String(-before));
      before += taken;
    }
    const queued = Object.values(waiting).reduce((sum, count) => sum + count, 0);
    return `${before} of ${slots.length} slots${queued ? `, ${queued} waiting` : ""}`;
  }

  /** Draws no slot. */
  clear() {
    for (const arc of this.#arcs.values()) arc.setAttribute("stroke-dasharray", "0 1");
  }
}
