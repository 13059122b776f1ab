// Small parts that templates share: icons, buttons, and the head of a foldable block.
import { html, nothing } from "../vendor/lit/lit-html.js";
import { ICONS } from "./env.js";

/** Returns an icon of the sprite. @param {string} name */
export const icon = (name) =>
  html`<svg class="icon" aria-hidden="true" focusable="false"><use href="${ICONS}#${name}"></use></svg>`;

/** @param {string} label @param {(event: Event) => void} run @param {string} [kind] */
export const button = (label, run, kind = "") =>
  html`<button class="button small ${kind}" type="button" @click=${run}>${label}</button>`;

/**
 * Returns a round button with an icon and an accessible name.
 * @param {string} name @param {string} label @param {(button: HTMLButtonElement) => void} run
 * @param {{ kind?: string, disabled?: boolean, opensMenu?: boolean }} [options]
 */
export const iconButton = (name, label, run, { kind = "", disabled = false, opensMenu = false } = {}) =>
  html`<button class="icon-button small ${kind}" type="button" aria-label=${label} title=${label} ?disabled=${disabled}
    aria-haspopup=${opensMenu ? "menu" : nothing} @click=${(/** @type {Event} */ { currentTarget }) =>
      run(/** @type {HTMLButtonElement} */ (currentTarget))}>${icon(name)}</button>`;

/** Returns the summary line of a foldable block. @param {unknown} content */
export const summary = (content) => html`<summary>${icon("chevron")}${content}</summary>`;
