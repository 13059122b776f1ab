// Tools of MCP servers in the settings sheet: which of them the conversation offers, and which run without a click.
import { html, nothing } from "../vendor/lit/lit-html.js";
import { runsAlways, setAlways } from "./always_run.js";
import { listServerTools } from "./api.js";
import { HAS_TOOLS } from "./env.js";
import { errorText } from "./labels.js";
import { isSameTool, offered } from "./server_tools.js";

/** @import { Conversation, ListedTool, ServerTools } from "./types.js" */

let servers = /** @type {ServerTools[]} */ ([]);
let problem = "";

/** Reads the list of tools, and calls `redraw` when it has arrived. @param {() => void} redraw */
export async function loadServerTools(redraw) {
  if (!HAS_TOOLS) return;
  try {
    servers = await listServerTools();
    problem = "";
  } catch (error) {
    problem = `The list of tools could not be read: ${/** @type {Error} */ (error).message}`;
    servers = [];
  }
  redraw();
}

/**
 * Returns the lists of all servers. A tool that is offered stays there if its server no longer lists it.
 * @param {Conversation} conversation @param {(apply?: import("./store.js").Change) => void} change
 */
export function serverToolsSection(conversation, change) {
  const { serverTools: chosen = [] } = conversation;
  const names = new Set([...servers, ...chosen.map(({ server }) => ({ name: server }))].map(({ name }) => name));
  return html`${[...names].map((name) => {
    const { tools = [], error = null } = servers.find((server) => server.name === name) ?? {};
    const missing = chosen.filter(
      (one) => one.server === name && !tools.some((tool) => isSameTool(one, { server: name, name: tool.name })),
    );
    const rest = missing.map((one) => ({ name: one.name, description: "not listed now", input_schema: {} }));
    return html`<fieldset class="server-tools">
        <legend class="field-label">${name}</legend>
        <span class="field-error" ?hidden=${!error}>${errorText({ message: error ?? "" })}</span>
        <ul>${[...tools, ...rest].map((tool) => html`<li>${row(conversation, name, tool, change)}</li>`)}</ul>
      </fieldset>`;
  })}
    <span class="field-error" ?hidden=${!problem}>${problem}</span>`;
}

/** @param {Conversation} conversation @param {string} server @param {ListedTool} listed @param {(apply?: import("./store.js").Change) => void} change */
function row({ serverTools: chosen = [] }, server, listed, change) {
  const tool = { server, name: listed.name };
  const found = chosen.find((one) => isSameTool(one, tool));
  const toggle = () =>
    change((conversation) => {
      const { serverTools = [] } = conversation;
      conversation.serverTools = found
        ? serverTools.filter((one) => !isSameTool(one, tool))
        : [...serverTools, offered(conversation, server, listed)];
    });
  const askAgain = () => {
    setAlways(tool, false);
    change();
  };
  const name = found?.tool.function.name ?? listed.name;
  return html`<label class="check">
      <input type="checkbox" name="server-tool" .checked=${Boolean(found)} @change=${toggle} />
      <span><code>${listed.name}</code>${name === listed.name ? nothing : html` as <code>${name}</code>`}
        <span class="field-note">${listed.description}</span></span>
    </label>
    ${runsAlways(tool) ? html`<button class="button small" type="button" aria-label="Ask before each run of ${listed.name}" @click=${askAgain}>Ask before each run</button>` : nothing}`;
}
