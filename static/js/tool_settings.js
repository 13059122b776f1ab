// Section of the settings sheet for the tools of a conversation.
import { foldSummary } from "./calls.js";
import { h } from "./dom.js";
import { EXAMPLE_TOOLS, parseTools } from "./tools.js";

/** @import { Conversation } from "./types.js" */

/**
 * Returns the section. A definition that is not valid leaves the last valid ones in force.
 * @param {Conversation} conversation @param {(apply: import("./store.js").Change) => void} onChange
 */
export function toolsSection({ tools = [], requiresCall = false }, onChange) {
  const area = h("textarea", {
    class: "mono tools-json",
    name: "tools",
    spellcheck: "false",
    placeholder: '[{"type": "function", "function": {"name": ...}}]',
    "aria-describedby": "note-tools error-tools",
  });
  const error = h("span", { class: "field-error", id: "error-tools", hidden: true });
  const read = () => {
    error.textContent = "";
    try {
      const parsed = parseTools(area.value);
      onChange((conversation) => (conversation.tools = parsed));
    } catch (problem) {
      error.textContent = /** @type {Error} */ (problem).message;
    }
    error.hidden = !error.textContent;
    area.setAttribute("aria-invalid", String(!error.hidden));
  };
  const write = (/** @type {unknown[]} */ definitions) =>
    (area.value = definitions.length ? JSON.stringify(definitions, null, 2) : "");
  const insert = () => {
    write(EXAMPLE_TOOLS);
    read();
    area.focus();
    area.setSelectionRange(0, 0);
    area.scrollTop = 0;
  };
  const required = h("input", { type: "checkbox", name: "requires-call" });
  required.checked = requiresCall;
  required.addEventListener("change", () => {
    const { checked } = required;
    onChange((conversation) => (conversation.requiresCall = checked));
  });
  write(tools);
  area.addEventListener("input", read);
  return h(
    "details",
    { class: "fold group", open: tools.length > 0 },
    foldSummary(h("span", {}, "Tools")),
    h(
      "div",
      { class: "fold-body" },
      h(
        "label",
        { class: "field" },
        h("span", { class: "field-label" }, "Definitions"),
        area,
        h(
          "span",
          { class: "field-note", id: "note-tools" },
          "A JSON list of functions, as in OpenAI's API. Calls appear in the conversation; you write their results.",
        ),
        error,
      ),
      h("button", { class: "button small", type: "button", onclick: insert }, "Insert an example"),
      h("label", { class: "check" }, required, h("span", {}, "Require a call for each message")),
    ),
  );
}
