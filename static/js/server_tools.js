// Tools of MCP servers among those that a conversation offers to the model. Pure.

/** @import { ListedTool, ServerTool, Settings, Tool, ToolCall } from "./types.js" */

const MAX_NAME = 128; // characters

/** Returns all definitions that a conversation offers. @param {Pick<Settings, "tools" | "serverTools">} settings @returns {Tool[]} */
export const definitionsOf = ({ tools = [], serverTools = [] }) => [...tools, ...serverTools.map(({ tool }) => tool)];

/** Returns the tool of a server that a call names; undefined for another one. @param {Settings} settings @param {ToolCall} call */
export const serverToolOf = ({ serverTools = [] }, { name }) =>
  serverTools.find(({ tool }) => tool.function.name === name);

/** Whether two are the same tool of the same server. @param {Omit<ServerTool, "tool">} a @param {Omit<ServerTool, "tool">} b */
export const isSameTool = (a, b) => a.server === b.server && a.name === b.name;

/**
 * Returns a listed tool as a conversation offers it: under its own name, or with that of its server before it if another
 * tool has that name.
 * @param {Settings} settings @param {string} server @param {ListedTool} listed @returns {ServerTool}
 */
export function offered(settings, server, { name, description, input_schema: parameters }) {
  const taken = new Set(definitionsOf(settings).map((tool) => tool.function.name));
  const valid = (/** @type {string} */ text) => text.replace(/[^\w.:-]/g, "_").slice(0, MAX_NAME - 4);
  let free = valid(name);
  for (let i = 1; taken.has(free); i++) free = valid(`${server}_${name}`) + (i > 1 ? `_${i}` : "");
  return { server, name, tool: { type: "function", function: { name: free, description, parameters } } };
}
