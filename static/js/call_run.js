// Template of the run of a tool call: its state, and the buttons that start it.
import { html, nothing } from "../vendor/lit/lit-html.js";

/** @import { CallRun } from "./types.js" */

/** @param {CallRun} run @param {string} name of the called function */
export function callRun({ state, text, run }, name) {
  const start = (/** @type {Event} */ { target }, /** @type {boolean} */ always) => {
    // The button is about to go away with the focus.
    /** @type {Element} */ (target).closest("details")?.querySelector("summary")?.focus();
    run(always);
  };
  const button = (/** @type {string} */ label, /** @type {boolean} */ always, kind = "") =>
    html`<button class="button small ${kind}" type="button" aria-label="${label} ${name}"
      @click=${(/** @type {Event} */ event) => start(event, always)}>${label}</button>`;
  return html`<div class="call-run" data-state=${state}>
    <span class="field-note">${text}</span>
    ${
      state === "running"
        ? nothing
        : html`<div>${button("Always run", true)}${button(state === "failed" ? "Run again" : "Run", false, "primary")}</div>`
    }
  </div>`;
}
