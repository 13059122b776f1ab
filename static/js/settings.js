// Settings sheet: a template of the open conversation's settings, which writes the chosen values into it.
import { html, render } from "../vendor/lit/lit-html.js";
import { closeByClick } from "./close_dialog.js";
import { saveDefaults, settingsOf } from "./defaults.js";
import { byId } from "./dom.js";
import { listField, numberField } from "./fields.js";
import { toast } from "./notices.js";
import { presetsSection, savePreset } from "./presets.js";
import { FIELDS, stopsTo, validationError, valueOf } from "./sampling.js";
import { loadServerTools } from "./server_tool_settings.js";
import { definitionsOf } from "./server_tools.js";
import { toolsSection } from "./tool_settings.js";

/** @import { Conversation, SamplingValue, Settings } from "./types.js" */
/** @import { Field } from "./sampling.js" */

const BLANK = { system: "", sampling: {}, tools: [], serverTools: [], requiresCall: false };
const GROUPS = [...new Set(FIELDS.map(({ group }) => group))];

export class SettingsSheet {
  #conversation = /** @type {Conversation | null} */ (null);
  #presetError = "";
  #texts = /** @type {Record<string, string>} */ ({}); // texts that were typed since the sheet opened, valid or not

  /** @param {(apply: import("./store.js").Change) => void} onChange changes the open conversation by `apply` */
  constructor(onChange) {
    this.onChange = onChange;
    this.dialog = byId("settings", HTMLDialogElement);
    this.body = byId("settings-body");
    byId("settings-reset").addEventListener("click", () => this.#setAll(BLANK));
    byId("settings-default").addEventListener("click", () => this.#saveDefaults());
    closeByClick(this.dialog);
    // Enter in a number field would submit the form and close the sheet before the value is checked.
    byId("settings-form").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target instanceof HTMLInputElement) event.preventDefault();
    });
  }

  /** @param {Conversation} conversation */
  open(conversation) {
    this.#conversation = conversation;
    this.#restart();
    this.dialog.showModal();
    loadServerTools(() => this.dialog.open && this.#draw());
  }

  /** Shows the values in force in all fields. */
  #restart() {
    this.#texts = {};
    this.#presetError = "";
    this.#draw();
    const tools = definitionsOf(/** @type {Conversation} */ (this.#conversation));
    /** @type {HTMLDetailsElement} */ (this.body.querySelector("details")).open = tools.length > 0;
  }

  /** Draws after a change; none, if what was typed is not valid. @param {import("./store.js").Change} [apply] */
  #change(apply) {
    if (apply) this.onChange(apply);
    this.#draw();
  }

  #draw() {
    const conversation = /** @type {Conversation} */ (this.#conversation);
    const { system, sampling } = conversation;
    const onSystem = (/** @type {InputEvent} */ { target }) => {
      const { value } = /** @type {HTMLTextAreaElement} */ (target);
      this.#change((conversation) => (conversation.system = value));
    };
    render(
      html`${presetsSection(conversation, this.#texts.preset ?? "", this.#presetError, {
        type: (name) => this.#typePreset(name),
        save: () => this.#savePreset(),
        apply: (preset) => this.#setAll(settingsOf(preset)),
      })}
        <label class="field">
          <span class="field-label">System prompt</span>
          <textarea id="system-prompt" placeholder="How the model should behave in this conversation"
            .value=${system} @input=${onSystem}></textarea>
        </label>
        ${GROUPS.map(
          (group) =>
            html`<section class="group">
              <h3>${group}</h3>
              ${FIELDS.filter((field) => field.group === group).map((field) => this.#field(field, sampling[field.name]))}
            </section>`,
        )}
        ${toolsSection(conversation, this.#texts.tools, (apply, text = this.#texts.tools) => {
          this.#texts.tools = text;
          this.#change(apply);
        })}`,
      this.body,
    );
  }

  /** @param {Field} field @param {SamplingValue | undefined} value */
  #field(field, value) {
    const onInput = (/** @type {InputEvent} */ { target }) => {
      const { value: text } = /** @type {HTMLInputElement} */ (target);
      this.#texts[field.name] = text;
      if (validationError(field, text)) this.#change();
      else this.#set(field, valueOf(field, text));
    };
    const text = this.#texts[field.name] ?? (Array.isArray(value) ? stopsTo(value) : String(value ?? ""));
    return field.list ? listField(field, text, onInput) : numberField(field, text, value, onInput);
  }

  /** @param {Field} field @param {SamplingValue | undefined} value */
  #set({ name }, value) {
    this.#change(({ sampling }) => {
      if (value === undefined) delete sampling[name];
      else sampling[name] = value;
    });
  }

  /** @param {string} name @param {string} [error] */
  #typePreset(name, error = "") {
    this.#texts.preset = name;
    this.#presetError = error;
    this.#draw();
  }

  #savePreset() {
    const { preset = "" } = this.#texts;
    const error = savePreset(preset.trim(), /** @type {Conversation} */ (this.#conversation));
    this.#typePreset(error ? preset : "", error);
  }

  /** @param {Settings} settings */
  #setAll(settings) {
    this.onChange((conversation) => Object.assign(conversation, structuredClone(settings)));
    this.#restart();
  }

  #saveDefaults() {
    saveDefaults(/** @type {Conversation} */ (this.#conversation));
    this.dialog.close();
    toast("New conversations start with these settings.", { ms: 3500 });
  }
}
