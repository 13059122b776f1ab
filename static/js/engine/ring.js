// Drawing of the carousel: slots that turn with the steps, requests in them, the queue outside, paused requests.
import { byId, svg } from "../dom.js";
import { glowRadius, layOutSlots, turnRate } from "./slot_layout.js";
import { StepMarks } from "./step_marks.js";

/** @import { Slot, Snapshot } from "../types.js" */
/** @import { SlotPlace } from "./slot_layout.js" */

const FRAME_MS = 1000 / 30; // ms; more frames would use cores that the engine may need on the same machine
const QUEUE_RADIUS = 262; // radius of the queue outside
const QUEUE_STEP = 0.105; // radians between two waiting requests
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

/** @typedef {{ at: SlotPlace, node: SVGGElement, marks: StepMarks, occupant: SVGGElement | null, request: string }} DrawnSlot */

export class Ring {
  #slots = /** @type {DrawnSlot[]} */ ([]);
  #spokes = /** @type {SVGGElement | null} */ (null);
  #angle = 0;
  #rate = 0;
  #target = 0;
  #last = 0;
  #step = /** @type {{ step: number, t: number } | null} */ (null);

  constructor() {
    this.node = byId("ring", SVGSVGElement);
    this.outside = svg("g", { class: "outside" });
    this.big = svg("text", { class: "hub-big", y: 4 }, "–");
    this.unit = svg("text", { class: "hub-unit", y: 34 }, "tokens per second");
    this.small = svg("text", { class: "hub-small", y: 60 }, "");
    this.node.append(this.outside, svg("g", { class: "hub" }, this.big, this.unit, this.small));
    requestAnimationFrame((now) => this.#frame(now));
  }

  /** @param {Snapshot} snapshot */
  show(snapshot) {
    if (snapshot.slots.length !== this.#slots.length) this.#build(snapshot.slots.length);
    snapshot.slots.forEach((slot, i) => this.#fill(this.#slots[i], slot));
    this.#showOutside(snapshot);
    const before = this.#step;
    this.#step = { step: snapshot.step, t: snapshot.t };
    if (before && snapshot.t > before.t)
      this.#target = turnRate((snapshot.step - before.step) / (snapshot.t - before.t));
    this.big.textContent = Math.round(snapshot.tokens_per_s).toLocaleString("en");
    const busy = snapshot.slots.filter(Boolean).length;
    // Steps of an idle engine compute nothing, so their number is not shown.
    const step = busy ? `, step ${snapshot.step.toLocaleString("en")}` : "";
    this.small.textContent = `${busy} of ${snapshot.slots.length} slots${step}`;
  }

  /** @param {number} n */
  #build(n) {
    for (const { node } of this.#slots) node.remove();
    this.#spokes?.remove();
    const { slots, rings } = layOutSlots(n);
    const spokes = n <= 40 ? slots.map(({ angle, radius, size }) => line(angle, 108, radius - size - 4)) : [];
    this.#spokes = svg("g", { class: "spokes" }, ...spokes);
    const tracks = svg("g", {}, ...rings.map((radius) => svg("circle", { class: "track", r: radius })));
    this.#spokes.append(tracks);
    this.node.insertBefore(this.#spokes, this.outside);
    this.#slots = slots.map((at, i) => {
      const node = svg(
        "g",
        { class: "slot", "data-slot": i, "data-state": "empty" },
        svg("circle", { class: "slot-outline", r: at.size }),
      );
      const marks = new StepMarks(at.size);
      node.append(marks.node);
      this.node.append(node);
      return { at, node, marks, occupant: null, request: "" };
    });
    this.#place();
  }

  /** @param {DrawnSlot} place @param {Slot | null} slot */
  #fill(place, slot) {
    const request = slot?.request ?? "";
    if (request !== place.request) {
      if (place.occupant) animateMove(place.occupant, this.#outward(place), true);
      place.occupant = slot ? occupant(slot, place.at.size) : null;
      if (place.occupant) {
        place.node.append(place.occupant);
        animateMove(place.occupant, this.#outward(place), false);
      }
      place.request = request;
    }
    place.node.dataset.state = slot?.state ?? "empty";
    place.marks.show(slot?.step_tokens ?? 1);
    if (slot) place.node.dataset.class = slot.class;
    else delete place.node.dataset.class;
    const context = place.occupant?.querySelector(".context");
    if (slot && context) context.textContent = slot.context.toLocaleString("en");
  }

  /** @param {DrawnSlot} place @returns {[number, number]} */
  #outward({ at }) {
    const angle = at.angle + this.#angle;
    return [Math.cos(angle) * 46, Math.sin(angle) * 46];
  }

  /** Draws the queue to the left of the gate and paused requests to its right. @param {Snapshot} snapshot */
  #showOutside({ queue, waiting, paused }) {
    const total = waiting.interactive + waiting.standard + waiting.batch;
    const dots = queue.slice(0, 20).map(({ class: kind }, i) => dot(kind, -Math.PI / 2 - 0.09 - i * QUEUE_STEP, ""));
    dots.push(
      ...paused.slice(0, 20).map(({ class: kind }, i) => dot(kind, -Math.PI / 2 + 0.09 + i * QUEUE_STEP, "paused")),
    );
    const labels = [];
    if (total)
      labels.push(svg("text", { class: "outside-label", x: -16, y: -281, "text-anchor": "end" }, `${total} waiting`));
    if (paused.length) labels.push(svg("text", { class: "outside-label", x: 16, y: -281 }, `${paused.length} paused`));
    const gate = labels.length ? [svg("path", { class: "gate", d: "M0 -288 V-246" })] : [];
    this.outside.replaceChildren(...gate, ...dots, ...labels);
  }

  /** @param {number} now */
  #frame(now) {
    requestAnimationFrame((next) => this.#frame(next));
    const passed = now - this.#last;
    if (passed < FRAME_MS) return;
    this.#last = now;
    this.#rate += (this.#target - this.#rate) * Math.min(1, passed / 900);
    if (reducedMotion.matches || this.#rate < 0.002) return;
    this.#angle += (this.#rate * Math.min(passed, 100)) / 1000;
    this.#place();
  }

  #place() {
    for (const { at, node } of this.#slots) {
      const angle = at.angle + this.#angle;
      node.setAttribute(
        "transform",
        `translate(${(Math.cos(angle) * at.radius).toFixed(2)} ${(Math.sin(angle) * at.radius).toFixed(2)})`,
      );
    }
    this.#spokes?.setAttribute("transform", `rotate(${((this.#angle * 180) / Math.PI).toFixed(2)})`);
  }
}

/** @param {Slot} slot @param {number} size */
function occupant(slot, size) {
  const parts = /** @type {SVGElement[]} */ ([
    svg("circle", { class: "glow", r: glowRadius(size) }),
    svg("circle", { class: "slot-fill", r: size - 1 }),
  ]);
  if (size >= 19)
    parts.push(
      svg(
        "text",
        { class: "name", y: size >= 26 ? -1 : 4, "font-size": size >= 26 ? 13 : 10.5 },
        slot.request.slice(0, 6),
      ),
    );
  if (size >= 26) parts.push(svg("text", { class: "context", y: 13, "font-size": 10.5 }, ""));
  return svg("g", { class: "occupant", "data-class": slot.class }, ...parts); // keeps its colour while it leaves
}

/** @param {SVGGElement} node @param {[number, number]} offset @param {boolean} off */
function animateMove(node, [x, y], off) {
  const out = { transform: `translate(${x}px, ${y}px) scale(0.5)`, opacity: 0 };
  const on = { transform: "none", opacity: 1 };
  if (reducedMotion.matches) return off ? node.remove() : undefined;
  const motion = node.animate(off ? [on, out] : [out, on], {
    duration: off ? 380 : 460,
    easing: "cubic-bezier(0.2, 0.7, 0.2, 1)",
    fill: off ? "forwards" : "none",
  });
  if (off) motion.onfinish = motion.oncancel = () => node.remove();
  return undefined;
}

/** @param {number} angle @param {number} from @param {number} to */
const line = (angle, from, to) =>
  svg("line", {
    x1: Math.cos(angle) * from,
    y1: Math.sin(angle) * from,
    x2: Math.cos(angle) * to,
    y2: Math.sin(angle) * to,
  });

/** @param {string} kind @param {number} angle @param {string} extra */
const dot = (kind, angle, extra) =>
  svg("circle", {
    class: `waiting ${extra}`,
    "data-class": kind,
    r: 6,
    cx: Math.cos(angle) * QUEUE_RADIUS,
    cy: Math.sin(angle) * QUEUE_RADIUS,
  });
