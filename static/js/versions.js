// Switch between the versions of a message: its siblings in the tree.
import { html, nothing } from "../vendor/lit/lit-html.js";
import { iconButton } from "./templates.js";

/** @import { Message } from "./types.js" */

/**
 * @param {Message[]} siblings the oldest first @param {Message} message
 * @param {(id: string, step: number) => void} choose called with the chosen version and the direction, -1 or 1
 */
export function versionSwitch(siblings, message, choose) {
  if (siblings.length < 2) return nothing;
  const at = siblings.findIndex(({ id }) => id === message.id);
  const go = (/** @type {number} */ step) => siblings[at + step] && choose(siblings[at + step].id, step);
  const onKey = (/** @type {KeyboardEvent} */ { key }) =>
    key === "ArrowLeft" ? go(-1) : key === "ArrowRight" ? go(1) : undefined;
  const [earlier, later] = [{ kind: "back", disabled: !at }, { disabled: at === siblings.length - 1 }];
  return html`<span class="versions" role="group" aria-label="Version ${at + 1} of ${siblings.length}" @keydown=${onKey}
    >${iconButton("chevron", "Earlier version", () => go(-1), earlier)}<span>${at + 1}/${siblings.length}</span
    >${iconButton("chevron", "Later version", () => go(1), later)}</span>`;
}

/** Moves the focus to the button that was pressed in the version before. @param {HTMLElement} node @param {number} step */
export function focusVersion(node, step) {
  const buttons = /** @type {HTMLButtonElement[]} */ ([...node.querySelectorAll(".versions button")]);
  const [pressed, other] = step < 0 ? buttons : buttons.reverse();
  (pressed?.disabled ? other : pressed)?.focus();
}
