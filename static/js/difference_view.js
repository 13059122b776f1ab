// Comparison of a replayed answer with the one that it repeats: the settings that differ, and the words.
import { html, render } from "../vendor/lit/lit-html.js";
import { foldSummary } from "./calls.js";
import { differences } from "./defaults.js";
import { difference } from "./difference.js";
import { h } from "./dom.js";

/** @import { Message } from "./types.js" */

const TAGS = {
  same: (/** @type {string} */ text) => text,
  removed: (/** @type {string} */ text) => html`<del>${text}</del>`,
  added: (/** @type {string} */ text) => html`<ins>${text}</ins>`,
};

export class DifferenceView {
  #shown = "";

  /** @param {(id: string) => Message | undefined} find returns another message of the conversation */
  constructor(find) {
    this.find = find;
    this.label = h("span");
    this.text = h("div", { class: "fold-body" });
    this.node = h("details", { class: "fold difference", hidden: true }, foldSummary(this.label), this.text);
  }

  /** @param {Message} message */
  show({ id, replayOf, state, content, sampling = {} }) {
    const other = replayOf && state !== "streaming" ? this.find(replayOf) : undefined;
    this.node.hidden = !other;
    if (!other || this.#shown === id) return;
    this.#shown = id;
    const changed = differences({ system: "", sampling }, { system: "", sampling: other.sampling ?? {} });
    const isSame = content === other.content;
    this.label.textContent = `${changed || "The same settings"}: ${isSame ? "the same text" : "another text"}`;
    render(
      difference(other.content, content).map(([kind, text]) => TAGS[kind](text)),
      this.text,
    );
  }
}
