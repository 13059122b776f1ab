// Dots above a slot: the tokens that its last step yielded, if it was more than one.
import { svg } from "../dom.js";
import { glowRadius } from "./slot_layout.js";

const DOT = 0.19; // diameter, relative to the radius of a slot
const MIN_DOT = 2.2;
const MAX_DOT = 5.5;
const MAX_TOKENS = 8; // of a step

export class StepMarks {
  #shown = 1;

  /** @param {number} size radius of the slot */
  constructor(size) {
    const dot = Math.max(MIN_DOT, Math.min(MAX_DOT, DOT * size));
    this.radius = glowRadius(size);
    this.distance = Math.min(1.6 * dot, (2 * Math.PI * this.radius) / MAX_TOKENS);
    this.node = svg("circle", { class: "step-tokens", r: this.radius, "stroke-width": dot, visibility: "hidden" });
  }

  /** @param {number} tokens */
  show(tokens) {
    if (tokens === this.#shown) return;
    this.#shown = tokens;
    this.node.setAttribute("visibility", tokens > 1 ? "visible" : "hidden");
    // Dashes without length have round ends alone.
    this.node.setAttribute("stroke-dasharray", `${`0 ${this.distance} `.repeat(tokens - 1)}0 ${10 * this.radius}`);
    const middle = ((tokens - 1) * this.distance) / 2 / this.radius;
    this.node.setAttribute("transform", `rotate(${-90 - (middle * 180) / Math.PI})`);
  }
}
