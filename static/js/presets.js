// Presets: settings under names, in localStorage, and the section of the settings sheet that offers them.
import { html } from "../vendor/lit/lit-html.js";
import { differences, settingsOf } from "./defaults.js";
import { icon } from "./templates.js";
import { readPref, writePref } from "./prefs.js";

/** @import { Conversation, Preset } from "./types.js" */

const MAX_PRESETS = 20;
const MAX_PRESET_BYTES = 65_536; // browsers store two bytes for each character and about 5 MB for a site

/** @returns {Preset[]} */
function readPresets() {
  const saved = readPref("presets", /** @type {unknown} */ ([]));
  return Array.isArray(saved) ? saved.filter(isPreset).slice(0, MAX_PRESETS) : [];
}

/** Whether a value has the fields of a preset: other programs can write the storage too. @param {any} value */
const isPreset = (value) =>
  typeof value?.name === "string" &&
  typeof value.system === "string" &&
  value.sampling instanceof Object &&
  [value.tools, value.serverTools].every((list) => list === undefined || Array.isArray(list));

/**
 * Saves settings under a name, which may exist. Returns the reason why it did not, or "".
 * @param {string} name @param {Conversation} conversation
 */
export function savePreset(name, conversation) {
  const preset = { name, ...settingsOf(conversation) };
  const others = readPresets().filter((other) => other.name !== name);
  if (!name) return "A name, please.";
  if (others.length >= MAX_PRESETS) return `There are ${MAX_PRESETS} presets, which is the limit; delete one first.`;
  if (2 * JSON.stringify(preset).length > MAX_PRESET_BYTES)
    return `These settings are too long for a preset, which has at most ${MAX_PRESET_BYTES / 2} characters.`;
  writePref(
    "presets",
    [...others, preset].sort((a, b) => a.name.localeCompare(b.name)),
  );
  const isSaved = readPresets().some((saved) => saved.name === name && !differences(saved, conversation));
  return isSaved ? "" : "This browser did not save the preset.";
}

/** @param {string} name */
const deletePreset = (name) =>
  writePref(
    "presets",
    readPresets().filter((preset) => preset.name !== name),
  );

/**
 * Returns the section; the preset that equals the settings in force is shown as pressed.
 * @param {Conversation} conversation @param {string} typed name for a new one @param {string} error
 * @param {{ type(name: string): void, save(): void, apply(preset: Preset): void }} on
 */
export function presetsSection(conversation, typed, error, on) {
  const onKey = (/** @type {KeyboardEvent} */ { key, isComposing }) => key === "Enter" && !isComposing && on.save();
  const presets = readPresets();
  return html`<section class="group presets">
    <h3>Presets</h3>
    <ul ?hidden=${!presets.length}>
      ${presets.map((preset) => {
        const { name } = preset;
        const remove = (/** @type {Event} */ { target }) => {
          const section = /** @type {Element} */ (target).closest("section");
          deletePreset(name);
          on.type("");
          section?.querySelector("input")?.focus(); // the pressed button is gone
        };
        return html`<li>
          <button class="preset" type="button" aria-pressed=${!differences(conversation, preset)}
            @click=${() => on.apply(preset)}>${name}</button>
          <button class="icon-button small" type="button" aria-label="Delete preset ${name}" title="Delete preset ${name}"
            @click=${remove}>${icon("close")}</button>
        </li>`;
      })}
    </ul>
    <div class="preset-save">
      <input type="text" name="preset" maxlength="60" placeholder="Name for these settings" aria-label="Name for these settings"
        autocomplete="off" aria-describedby="error-preset" aria-invalid=${error !== ""} .value=${typed}
        @input=${(/** @type {InputEvent} */ { target }) => on.type(/** @type {HTMLInputElement} */ (target).value)} @keydown=${onKey} />
      <button class="button small" type="button" @click=${on.save}>Save preset</button>
    </div>
    <span class="field-error" id="error-preset" ?hidden=${!error}>${error}</span>
  </section>`;
}
