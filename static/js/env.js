// Owns what the server told the page about itself (the meta tags of base.html). Knows nothing about requests.

/** @param {string} name */
const meta = (name) => document.querySelector(`meta[name="carousel-${name}"]`)?.getAttribute("content") ?? "";

export const BASE = meta("base").replace(/\/$/, "");
export const MODEL = meta("model");
export const TITLE = meta("title");
export const SYSTEM_PROMPT = meta("system-prompt");
/** Questions that the operator offers; null: the page's own. @type {string[] | null} */
export const OFFERED = JSON.parse(meta("examples") || "null");
/** The sampling parameters that the server uses where a request sets none. @type {Record<string, number>} */
export const SAMPLING = JSON.parse(meta("sampling") || "{}");
export const VERSION = meta("version");
/** Seconds that the server lets an answer go on without a reader. */
export const RESUME_SECONDS = Number(meta("resume"));
export const ICONS = meta("icons") || `${BASE}/static/icons.svg`;
export const MAC = /Mac|iPhone|iPad/.test(navigator.platform);

/** A path of this server, wherever it is mounted. @param {string} path */
export const url = (path) => BASE + path;
