// Chart of the last minute: decoded tokens as a line, prefilled tokens as an area behind it.
import { svg } from "../dom.js";

/** @import { Snapshot } from "../types.js" */

const SPAN_SECONDS = 60;
const WIDTH = 300;
const HEIGHT = 72;

/** @typedef {{ t: number, decode: number, prefill: number }} Point */

export class Spark {
  #points = /** @type {Point[]} */ ([]);

  /** @param {SVGSVGElement} node @param {HTMLElement} note */
  constructor(node, note) {
    this.node = node;
    this.note = note;
    this.area = svg("path", { class: "spark-area" });
    this.line = svg("path", { class: "spark-line" });
    this.prefill = svg("path", { class: "spark-prefill" });
    node.append(
      svg("line", { class: "spark-base", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }),
      this.prefill,
      this.area,
      this.line,
    );
  }

  /** Forgets the points, which are those of another engine. */
  clear() {
    this.#points = [];
  }

  /** @param {Pick<Snapshot, "t" | "tokens_per_s" | "prefill_tokens_per_s" | "latency">} snapshot */
  show({ t, tokens_per_s: decode, prefill_tokens_per_s: prefill, latency }) {
    // The engine has restarted
    if (this.#points.length && t < this.#points[this.#points.length - 1].t) this.#points = [];
    this.#points.push({ t, decode, prefill });
    while (this.#points[0].t < t - SPAN_SECONDS) this.#points.shift();
    const top = Math.max(1, ...this.#points.map((point) => point.decode));
    const topPrefill = Math.max(1, ...this.#points.map((point) => point.prefill));
    const decoded = this.#path(t, (point) => point.decode / top);
    this.line.setAttribute("d", decoded);
    this.area.setAttribute("d", this.#closed(decoded, t));
    this.prefill.setAttribute(
      "d",
      this.#closed(
        this.#path(t, (point) => (0.5 * point.prefill) / topPrefill),
        t,
      ),
    );
    const text = this.#points.some((point) => point.decode || point.prefill)
      ? `last minute, at most ${Math.round(top).toLocaleString("en")}`
      : `no tokens ${wasActive(latency) ? "since this page was opened" : "in the last minute"}`;
    if (this.note.textContent !== text) this.note.textContent = text;
  }

  /** @param {number} t @param {number} now */
  #x(t, now) {
    return (WIDTH * (t - now + SPAN_SECONDS)) / SPAN_SECONDS;
  }

  /** @param {number} now @param {(point: Point) => number} share */
  #path(now, share) {
    return this.#points
      .map(
        (point, i) =>
          `${i ? "L" : "M"}${this.#x(point.t, now).toFixed(1)} ${(HEIGHT - 2 - share(point) * (HEIGHT - 8)).toFixed(1)}`,
      )
      .join("");
  }

  /** @param {string} path @param {number} now */
  #closed(path, now) {
    return `${path}V${HEIGHT}H${this.#x(this.#points[0].t, now).toFixed(1)}Z`;
  }
}

/**
 * Returns whether any request had a token or an end in the last minute; the chart begins when the page is opened.
 * @param {Snapshot["latency"]} latency
 */
const wasActive = (latency) =>
  Object.values(latency).some(
    ({ requests, ttft_ms: [first], itl_ms: [gap] }) => requests || first !== null || gap !== null,
  );
