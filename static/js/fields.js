// Templates of the fields of the settings sheet.
import { html, nothing } from "../vendor/lit/lit-html.js";
import { SAMPLING } from "./env.js";
import { validationError } from "./sampling.js";

/** @import { SamplingValue } from "./types.js" */
/** @import { Field } from "./sampling.js" */

/** Returns the note of a field and its error, by which `aria-describedby` describes it. @param {string} name @param {string} note @param {string} error */
export const notes = (name, note, error) =>
  html`<span class="field-note" id="note-${name}">${note}</span>
    <span class="field-error" id="error-${name}" ?hidden=${!error}>${error}</span>`;

/** @param {Field} field @param {string} text @param {(event: InputEvent) => void} onInput */
export function listField(field, text, onInput) {
  const { name, label, note } = field;
  const error = validationError(field, text);
  return html`<label class="field">
    <span class="field-label">${label}</span>
    <textarea class="mono" name=${name} spellcheck="false" aria-describedby="note-${name} error-${name}"
      aria-invalid=${error !== ""} .value=${text} @input=${onInput}></textarea>
    ${notes(name, note, error)}
  </label>`;
}

/**
 * Returns a field with a slider where its range is known. An unset one shows the value that the server uses.
 * @param {Field} field @param {string} text @param {SamplingValue | undefined} value the one in force
 * @param {(event: InputEvent) => void} onInput
 */
export function numberField(field, text, value, onInput) {
  const { name, label, note, min, max, step } = field;
  const error = validationError(field, text);
  return html`<div class="field" ?data-auto=${value === undefined}>
    <div class="field-head">
      <label class="field-label" for="set-${name}">${label}</label>
      <input type="text" inputmode=${field.whole ? "numeric" : "decimal"} id="set-${name}" name=${name}
        placeholder=${SAMPLING[name] ?? "default"} autocomplete="off" aria-describedby="note-${name} error-${name}"
        aria-invalid=${error !== ""} .value=${text} @input=${onInput} />
    </div>
    ${
      field.slider
        ? html`<input type="range" min=${min} max=${max} step=${step} aria-label=${label}
            .value=${String(value ?? SAMPLING[name] ?? field.neutral)} @input=${onInput} />`
        : nothing
    }
    ${notes(name, note, error)}
  </div>`;
}
