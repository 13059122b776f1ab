// Settings of conversations: those with which new ones start, and how others differ from them.
import { SAMPLING, SYSTEM_PROMPT } from "./env.js";
import { newId } from "./ids.js";
import { readPref, writePref } from "./prefs.js";
import { definitionsOf } from "./server_tools.js";
import { FIELDS } from "./sampling.js";

/** @import { Conversation, Settings } from "./types.js" */

/** @param {Settings} conversation @returns {Settings} */
export const settingsOf = ({ system, sampling, tools = [], serverTools = [], requiresCall = false }) => ({
  system,
  sampling,
  tools,
  serverTools,
  requiresCall,
});

/** Returns the settings with which new conversations start. */
export const defaultSettings = () =>
  settingsOf({ system: SYSTEM_PROMPT, sampling: {}, ...readPref("defaults", /** @type {Partial<Settings>} */ ({})) });

/** @param {string} model @returns {Conversation} */
export function blankConversation(model) {
  const now = Date.now();
  return {
    id: newId(),
    title: "New conversation",
    created: now,
    updated: now,
    model,
    ...defaultSettings(),
    messages: [],
  };
}

/** Saves the settings of a conversation for new ones. @param {Conversation} conversation */
export const saveDefaults = (conversation) => writePref("defaults", settingsOf(conversation));

/** Returns a line of the settings that differ from others, "" if none do. @param {Settings} now @param {Settings} others */
export function differences(now, others) {
  const parts = [];
  const [system, prompt] = [now.system.trim(), others.system.trim()];
  if (system !== prompt) parts.push(system ? "system prompt" : "no system prompt");
  for (const { name, label } of FIELDS) {
    const [value, other] = [now, others].map(({ sampling }) => sampling[name] ?? SAMPLING[name]);
    if (JSON.stringify(value) !== JSON.stringify(other)) parts.push(`${label.toLowerCase()} ${shown(value)}`);
  }
  const tools = definitionsOf(now);
  if (JSON.stringify(tools) !== JSON.stringify(definitionsOf(others)))
    parts.push(tools.length ? `${tools.length} ${tools.length === 1 ? "tool" : "tools"}` : "no tools");
  if (Boolean(now.requiresCall) !== Boolean(others.requiresCall))
    parts.push(now.requiresCall ? "required calls" : "optional calls");
  const line = parts.join(", ");
  return line.charAt(0).toUpperCase() + line.slice(1);
}

/** @param {import("./types.js").SamplingValue | undefined} value */
const shown = (value) =>
  Array.isArray(value) ? value.map((text) => JSON.stringify(text)).join(" or ") : (value ?? "default");
