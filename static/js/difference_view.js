// Comparison of a replayed answer with the one that it repeats: the settings that differ, and the words.
import { html, nothing } from "../vendor/lit/lit-html.js";
import { differences } from "./defaults.js";
import { difference } from "./difference.js";
import { summary } from "./templates.js";

/** @import { Message } from "./types.js" */

const TAGS = {
  same: (/** @type {string} */ text) => text,
  removed: (/** @type {string} */ text) => html`<del>${text}</del>`,
  added: (/** @type {string} */ text) => html`<ins>${text}</ins>`,
};

/** By the complete answer: the words are compared once. */
const compared = /** @type {WeakMap<Message, unknown>} */ (new WeakMap());

/** @param {Message} message @param {(id: string) => Message | undefined} find returns another message of the conversation */
export function differenceView(message, find) {
  const { replayOf, state } = message;
  const other = replayOf && state !== "streaming" ? find(replayOf) : undefined;
  if (!other) return nothing;
  if (!compared.has(message)) compared.set(message, comparison(message, other));
  return compared.get(message);
}

/** @param {Message} message @param {Message} other */
function comparison({ content, sampling = {} }, other) {
  const changed = differences({ system: "", sampling }, { system: "", sampling: other.sampling ?? {} });
  const label = `${changed || "The same settings"}: ${content === other.content ? "the same text" : "another text"}`;
  const words = difference(other.content, content).map(([kind, text]) => TAGS[kind](text));
  return html`<details class="fold difference">
    ${summary(html`<span>${label}</span>`)}
    <div class="fold-body">${words}</div>
  </details>`;
}
