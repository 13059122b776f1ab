// Section of the settings sheet for the tools of a conversation.
import { html } from "../vendor/lit/lit-html.js";
import { notes } from "./fields.js";
import { serverToolsSection } from "./server_tool_settings.js";
import { icon } from "./templates.js";
import { EXAMPLE_TOOLS, parseTools } from "./tools.js";

/** @import { Conversation, ServerTool, Tool } from "./types.js" */

const NOTE = "A JSON list of functions, as in OpenAI's API. Calls appear in the conversation; you write their results.";
const PLACEHOLDER = '[{"type": "function", "function": {"name": ...}}]';

/** @param {unknown[]} definitions */
const textOf = (definitions) => (definitions.length ? JSON.stringify(definitions, null, 2) : "");

/**
 * Returns the definitions of a text, or why they are not valid.
 * @param {string} text @param {ServerTool[]} serverTools @returns {{ tools?: Tool[], error: string }}
 */
function read(text, serverTools) {
  try {
    const tools = parseTools(text);
    const clash = serverTools.find(({ tool }) => tools.some((own) => own.function.name === tool.function.name));
    if (!clash) return { tools, error: "" };
    return { error: `${clash.tool.function.name} is a tool of ${clash.server}. Give yours another name.` };
  } catch (problem) {
    return { error: /** @type {Error} */ (problem).message };
  }
}

/**
 * Returns the section. A definition that is not valid leaves the last valid ones in force.
 * @param {Conversation} conversation @param {string | undefined} typed text of the definitions that was typed
 * @param {(apply?: import("./store.js").Change, typed?: string) => void} change
 */
export function toolsSection(conversation, typed, change) {
  const { tools = [], requiresCall = false, serverTools = [] } = conversation;
  const error = typed === undefined ? "" : read(typed, serverTools).error;
  const write = (/** @type {string} */ text) => {
    const { tools } = read(text, serverTools);
    change(tools && ((conversation) => (conversation.tools = tools)), text);
  };
  const onInput = (/** @type {InputEvent} */ { target }) => write(/** @type {HTMLTextAreaElement} */ (target).value);
  const insert = (/** @type {MouseEvent} */ { target }) => {
    write(textOf(EXAMPLE_TOOLS));
    const area = /** @type {Element} */ (target).parentElement?.querySelector("textarea");
    area?.focus();
    area?.setSelectionRange(0, 0);
    area?.scrollTo(0, 0);
  };
  const onRequired = (/** @type {Event} */ { target }) => {
    const { checked } = /** @type {HTMLInputElement} */ (target);
    change((conversation) => (conversation.requiresCall = checked));
  };
  return html`<details class="fold group">
    <summary>${icon("chevron")}<span>Tools</span></summary>
    <div class="fold-body">
      ${serverToolsSection(conversation, (apply) => change(apply))}
      <label class="field">
        <span class="field-label">Definitions</span>
        <textarea class="mono tools-json" name="tools" spellcheck="false" placeholder=${PLACEHOLDER}
          aria-describedby="note-tools error-tools" aria-invalid=${error !== ""} .value=${typed ?? textOf(tools)}
          @input=${onInput}></textarea>
        ${notes("tools", NOTE, error)}
      </label>
      <button class="button small" type="button" @click=${insert}>Insert an example</button>
      <label class="check">
        <input type="checkbox" name="requires-call" .checked=${requiresCall} @change=${onRequired} />
        <span>Require a call for each message</span>
      </label>
    </div>
  </details>`;
}
