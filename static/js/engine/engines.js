// Choice of the engine that the page shows: a button with a small ring for each, if there are several.
import { h } from "../dom.js";
import { SmallRing } from "./small_ring.js";

/** @import { EngineEvent, Snapshot } from "../types.js" */

const TEXTS = {
  live: "serves requests",
  loading: "is loading",
  restarting: "is restarting",
  retrying: "will be started again",
  failed: "has failed",
  stopped: "is stopping",
};

/** @typedef {keyof typeof TEXTS} EngineState */

export class Engines {
  chosen = 0; // number of the engine that is shown
  #buttons = /** @type {Map<number, HTMLElement>} */ (new Map());
  #rings = /** @type {Map<number, SmallRing>} */ (new Map());
  #states = /** @type {Map<number, EngineState>} */ (new Map());

  /** @param {HTMLElement} node holds the buttons @param {() => void} onChoice called when another engine was chosen */
  constructor(node, onChoice) {
    this.node = node;
    this.onChoice = onChoice;
  }

  /** Shows the slots of an engine that serves requests. @param {Snapshot} snapshot */
  show(snapshot) {
    this.#note(snapshot.engine, snapshot.engines, "live");
    const slots = this.#rings.get(snapshot.engine)?.show(snapshot) ?? "";
    this.#describe(snapshot.engine, `${TEXTS.live}: ${slots}`);
  }

  /** Records that an engine serves no requests. @param {EngineEvent} event */
  lose({ engine, engines, phase }) {
    this.#note(engine, engines, phase);
    this.#rings.get(engine)?.clear();
    this.#describe(engine, TEXTS[phase]);
  }

  /** @param {number} engine @param {number[]} all @param {EngineState} state */
  #note(engine, all, state) {
    if (String(all) !== String([...this.#buttons.keys()])) this.#build(all);
    if (this.#states.get(engine) === state) return;
    this.#states.set(engine, state);
    this.#buttons.get(engine)?.setAttribute("data-state", state);
  }

  /** @param {number} engine @param {string} text */
  #describe(engine, text) {
    const button = this.#buttons.get(engine);
    button?.setAttribute("title", `Engine ${engine} ${text}`);
    button?.setAttribute("aria-label", `Engine ${engine}, which ${text}`);
  }

  /** Returns the state of the chosen engine, once it is known. */
  get state() {
    return this.#states.get(this.chosen);
  }

  /** @param {number[]} engines */
  #build(engines) {
    this.#states.clear();
    this.#rings = new Map(engines.map((engine) => [engine, new SmallRing(engine)]));
    this.#buttons = new Map(
      [...this.#rings].map(([engine, ring]) => {
        const button = h("button", { type: "button" }, ring.node);
        button.addEventListener("click", () => this.#choose(engine));
        return [engine, button];
      }),
    );
    this.node.hidden = engines.length < 2;
    this.node.replaceChildren(...this.#buttons.values());
    this.#choose(engines.includes(this.chosen) ? this.chosen : engines[0]);
  }

  /** @param {number} engine */
  #choose(engine) {
    const isOther = engine !== this.chosen;
    this.chosen = engine;
    for (const [number, button] of this.#buttons) button.setAttribute("aria-pressed", String(number === engine));
    if (isOther) this.onChoice();
  }
}
