// Server settings for the page, from the meta tags of base.html.

/** @param {string} name */
const meta = (name) => document.querySelector(`meta[name="carousel-${name}"]`)?.getAttribute("content") ?? "";

export const BASE = meta("base").replace(/\/$/, "");
export const MODEL = meta("model");
export const TITLE = meta("title");
export const SYSTEM_PROMPT = meta("system-prompt");
/** Example questions of an empty conversation. @type {string[]} */
export const EXAMPLES = JSON.parse(meta("examples") || "[]");
/** Default sampling parameters of the server. @type {Record<string, number>} */
export const SAMPLING = JSON.parse(meta("sampling") || "{}");
export const VERSION = meta("version");
/** Seconds for which the server continues an answer without a reader. */
export const RESUME_SECONDS = Number(meta("resume"));
/** Whether the server keeps conversations by key. */
export const KEEPS_ROWS = meta("keeps-rows") !== "";
/** Whether the server runs tools of MCP servers. */
export const HAS_TOOLS = meta("has-tools") !== "";
export const ICONS = meta("icons") || `${BASE}/static/icons.svg`;
export const MAC = /Mac|iPhone|iPad/.test(navigator.platform);

/** Returns the URL of a path of this server below its root path. @param {string} path */
export const url = (path) => BASE + path;
