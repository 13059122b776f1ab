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
  #states = /** @type {Map<number, EngineState>} */ (new Map());

  /** @param {HTMLElement} node holds the buttons @param {() => void} onChoice called when another engine was chosen */
  constructor(node, onChoice) {
    this.node = node;
    this.onChoice = onChoice;
  }

  /** Records the state of an engine, one of `count`. @param {number} engine @param {number} count @param {EngineState} state */
  note(engine, count, state) {
    if (this.node.children.length !== count) this.#build(count);
    if (this.#states.get(engine) === state) return;
    this.#states.set(engine, state);
    const button = this.node.children[engine];
    button.setAttribute("data-state", state);
    button.setAttribute("title", `Engine ${engine} ${TEXTS[state]}`);
    button.setAttribute("aria-label", `Engine ${engine}, which ${TEXTS[state]}`);
  }

  /** Returns the state of the chosen engine, once it is known. */
  get state() {
    return this.#states.get(this.chosen);
  }

  /** @param {number} count */
  #build(count) {
    this.#states.clear();
    this.node.hidden = count < 2;
    this.node.replaceChildren(
      ...Array.from({ length: count }, (_, engine) => {
        const button = h("button", { type: "button" }, h("i", { "aria-hidden": "true" }), String(engine));
        button.addEventListener("click", () => this.#choose(engine));
        return button;
      }),
    );
    this.#choose(Math.min(this.chosen, count - 1));
  }

  /** @param {number} engine */
  #choose(engine) {
    const isOther = engine !== this.chosen;
    this.chosen = engine;
    [...this.node.children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === engine)));
    if (isOther) this.onChoice();
  }
}
