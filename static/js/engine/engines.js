// Choice of the engine that the page shows: a button for each, if there are several.
import { h } from "../dom.js";

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
  #states = /** @type {Map<number, EngineState>} */ (new Map());

  /** @param {HTMLElement} node holds the buttons @param {() => void} onChoice called when another engine was chosen */
  constructor(node, onChoice) {
    this.node = node;
    this.onChoice = onChoice;
  }

  /** Records the state of one of several engines. @param {number} engine @param {number[]} all @param {EngineState} state */
  note(engine, all, state) {
    if (String(all) !== String([...this.#buttons.keys()])) this.#build(all);
    const button = this.#buttons.get(engine);
    if (!button || this.#states.get(engine) === state) return;
    this.#states.set(engine, state);
    button.setAttribute("data-state", state);
    button.setAttribute("title", `Engine ${engine} ${TEXTS[state]}`);
    button.setAttribute("aria-label", `Engine ${engine}, which ${TEXTS[state]}`);
  }

  /** Returns the state of the chosen engine, once it is known. */
  get state() {
    return this.#states.get(this.chosen);
  }

  /** @param {number[]} engines */
  #build(engines) {
    this.#states.clear();
    this.#buttons = new Map(
      engines.map((engine) => {
        const button = h("button", { type: "button" }, h("i", { "aria-hidden": "true" }), String(engine));
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
