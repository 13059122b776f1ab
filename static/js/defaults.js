// Settings with which new conversations start.
import { SYSTEM_PROMPT } from "./env.js";
import { readPref, writePref } from "./prefs.js";
import { newId } from "./ids.js";

/** @import { Conversation } from "./types.js" */

/** @param {string} model @returns {Conversation} */
export function blankConversation(model) {
  const saved = readPref("defaults", /** @type {Partial<Conversation>} */ ({}));
  const { system = SYSTEM_PROMPT, sampling = {}, tools = [], requiresCall = false } = saved;
  const now = Date.now();
  const settings = { model, system, sampling: { ...sampling }, tools, requiresCall };
  return { id: newId(), title: "New conversation", created: now, updated: now, ...settings, messages: [] };
}

/** Saves the settings of a conversation for new ones. @param {Conversation} conversation */
export const saveDefaults = ({ system, sampling, tools, requiresCall }) =>
  writePref("defaults", { system, sampling, tools, requiresCall });
