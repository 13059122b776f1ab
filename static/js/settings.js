// Settings sheet: draws the fields of sampling.js and writes the chosen values into the open conversation.
import { closeByClick } from "./close_dialog.js";
import { saveDefaults } from "./defaults.js";
import { byId, h } from "./dom.js";
import { SAMPLING } from "./env.js";
import { toast } from "./notices.js";
import { FIELDS, validationError, stopsFrom, stopsTo } from "./sampling.js";
import { toolsSection } from "./tool_settings.js";

/** @import { Conversation, SamplingValue } from "./types.js" */
/** @import { Field } from "./sampling.js" */

export class SettingsSheet {
  #conversation = /** @type {Conversation | null} */ (null);

  /** @param {(apply: import("./store.js").Change) => void} onChange changes the open conversation by `apply` */
  constructor(onChange) {
    this.onChange = onChange;
    this.dialog = byId("settings", HTMLDialogElement);
    this.body = byId("settings-body");
    byId("settings-reset").addEventListener("click", () => this.#reset());
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
    this.#draw();
    this.dialog.showModal();
  }

  #draw() {
    const conversation = /** @type {Conversation} */ (this.#conversation);
    const { system, sampling } = conversation;
    const area = h("textarea", {
      id: "system-prompt",
      placeholder: "How the model should behave in this conversation",
    });
    area.value = system;
    area.addEventListener("input", () => {
      const text = area.value;
      this.onChange((conversation) => (conversation.system = text));
    });
    const groups = Map.groupBy ? Map.groupBy(FIELDS, ({ group }) => group) : groupBy(FIELDS);
    this.body.replaceChildren(
      h("label", { class: "field" }, h("span", { class: "field-label" }, "System prompt"), area),
      ...[...groups].map(([group, fields]) =>
        h(
          "section",
          { class: "group" },
          h("h3", {}, group),
          ...fields.map((field) => this.#field(field, sampling[field.name])),
        ),
      ),
      toolsSection(conversation, this.onChange),
    );
  }

  /** @param {Field} field @param {SamplingValue | undefined} value */
  #field(field, value) {
    if (field.list) return this.#listField(field, Array.isArray(value) ? value : []);
    return this.#numberField(field, typeof value === "number" ? value : undefined);
  }

  /** @param {Field} field @param {string[]} value */
  #listField(field, value) {
    const describedBy = `note-${field.name} error-${field.name}`;
    const area = h("textarea", {
      class: "mono",
      name: field.name,
      spellcheck: "false",
      "aria-describedby": describedBy,
    });
    const error = h("span", { class: "field-error", id: `error-${field.name}`, hidden: true });
    area.value = stopsTo(value);
    area.addEventListener("input", () => {
      if (this.#showError(area, error, validationError(field, area.value))) return;
      const stops = stopsFrom(area.value);
      this.#set(field, stops.length ? stops : undefined);
    });
    return h(
      "label",
      { class: "field" },
      h("span", { class: "field-label" }, field.label),
      area,
      h("span", { class: "field-note", id: `note-${field.name}` }, field.note),
      error,
    );
  }

  /** @param {Field} field @param {number | undefined} value */
  #numberField(field, value) {
    const describedBy = `note-${field.name} error-${field.name}`;
    const number = h("input", {
      type: "text",
      inputmode: field.whole ? "numeric" : "decimal",
      id: `set-${field.name}`,
      name: field.name,
      placeholder: SAMPLING[field.name] === undefined ? "default" : String(SAMPLING[field.name]),
      autocomplete: "off",
      "aria-describedby": describedBy,
    });
    const error = h("span", { class: "field-error", id: `error-${field.name}`, hidden: true });
    const node = h(
      "div",
      { class: "field" },
      h(
        "div",
        { class: "field-head" },
        h("label", { class: "field-label", for: `set-${field.name}` }, field.label),
        number,
      ),
    );
    const range = field.slider
      ? h("input", { type: "range", min: field.min, max: field.max, step: field.step, "aria-label": field.label })
      : null;
    const show = (/** @type {number | undefined} */ now) => {
      node.toggleAttribute("data-auto", now === undefined);
      if (range) range.value = String(now ?? SAMPLING[field.name] ?? field.neutral);
    };
    number.value = String(value ?? "");
    show(value);
    number.addEventListener("input", () => {
      const text = number.value.trim().replace(",", ".");
      if (this.#showError(number, error, validationError(field, text))) return;
      const now = text === "" ? undefined : Number(text);
      show(now);
      this.#set(field, now);
    });
    range?.addEventListener("input", () => {
      number.value = range.value;
      number.dispatchEvent(new Event("input"));
    });
    if (range) node.append(range);
    node.append(h("span", { class: "field-note", id: `note-${field.name}` }, field.note), error);
    return node;
  }

  /**
   * Shows or clears the error of a field and returns whether there is one; the last valid value then stays in force.
   * @param {HTMLElement} input @param {HTMLElement} error @param {string} reason
   */
  #showError(input, error, reason) {
    error.textContent = reason;
    error.hidden = !reason;
    input.setAttribute("aria-invalid", String(Boolean(reason)));
    return Boolean(reason);
  }

  /** @param {Field} field @param {SamplingValue | undefined} value */
  #set(field, value) {
    this.onChange(({ sampling }) => {
      if (value === undefined) delete sampling[field.name];
      else sampling[field.name] = value;
    });
  }

  #reset() {
    this.onChange((conversation) =>
      Object.assign(conversation, { system: "", sampling: {}, tools: [], requiresCall: false }),
    );
    this.#draw();
  }

  #saveDefaults() {
    saveDefaults(/** @type {Conversation} */ (this.#conversation));
    this.dialog.close();
    toast("New conversations start with these settings.", { ms: 3500 });
  }
}

/** @param {Field[]} fields @returns {Map<string, Field[]>} */
function groupBy(fields) {
  const groups = new Map();
  for (const field of fields) groups.set(field.group, [...(groups.get(field.group) ?? []), field]);
  return groups;
}
