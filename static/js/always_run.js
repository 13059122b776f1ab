// Tools of MCP servers that run without a click in this browser.
import { readPref, writePref } from "./prefs.js";

/** @import { ServerTool } from "./types.js" */

const MAX_TOOLS = 1000;

/** @param {Omit<ServerTool, "tool">} tool */
const keyOf = ({ server, name }) => `${server} ${name}`; // neither has a space

/** @returns {string[]} */
const read = () => readPref("always-run", []);

/** Whether a tool runs without a click. @param {Omit<ServerTool, "tool">} tool */
export const runsAlways = (tool) => read().includes(keyOf(tool));

/** @param {Omit<ServerTool, "tool">} tool @param {boolean} always */
export function setAlways(tool, always) {
  const others = read().filter((key) => key !== keyOf(tool));
  writePref("always-run", (always ? [...others, keyOf(tool)] : others).slice(-MAX_TOOLS));
}
