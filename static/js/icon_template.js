// Icon of the sprite as a part of a template.
import { ICONS } from "./env.js";
import { html } from "../vendor/lit/lit-html.js";

/** @param {string} name */
export const iconTemplate = (name) =>
  html`<svg class="icon" aria-hidden="true" focusable="false"><use href="${ICONS}#${name}"></use></svg>`;
