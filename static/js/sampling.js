// Settings of an answer: names, ranges, and the request built from them. Pure; settings.js draws them.

import { definitionsOf } from "./server_tools.js";
import { turnsOf } from "./tools.js";

/** @import { AnswerRequest, Conversation, Message, Turn } from "./types.js" */

/**
 * @typedef {{ name: string, label: string, note: string, min?: number, max?: number, step?: number, whole?: boolean, slider?: boolean,
 *   list?: boolean, neutral?: number, group: string }} Field
 * @type {Field[]}
 */
export const FIELDS = [
  { name: "max_tokens", label: "Longest answer", note: "In tokens.", min: 1, whole: true, group: "Answer" },
  {
    name: "temperature",
    label: "Temperature",
    note: "0 always takes the most likely token.",
    min: 0,
    max: 2,
    step: 0.05,
    slider: true,
    neutral: 1,
    group: "Sampling",
  },
  {
    name: "top_p",
    label: "Top p",
    note: "Only the most likely tokens that together reach this probability.",
    min: 0.01,
    max: 1,
    step: 0.01,
    slider: true,
    neutral: 1,
    group: "Sampling",
  },
  {
    name: "min_p",
    label: "Min p",
    note: "Leaves out tokens below this share of the highest probability.",
    min: 0,
    max: 1,
    step: 0.01,
    slider: true,
    neutral: 0,
    group: "Sampling",
  },
  {
    name: "top_k",
    label: "Top k",
    note: "Only this many candidates; 0 for all.",
    min: 0,
    whole: true,
    group: "Sampling",
  },
  {
    name: "seed",
    label: "Seed",
    note: "The same seed and text give the same answer.",
    min: 0,
    max: Number.MAX_SAFE_INTEGER,
    whole: true,
    group: "Sampling",
  },
  {
    name: "repetition_penalty",
    label: "Repetition penalty",
    note: "Above 1, tokens that have occurred become less likely.",
    min: 0.5,
    max: 2,
    step: 0.01,
    slider: true,
    neutral: 1,
    group: "Repetition",
  },
  {
    name: "presence_penalty",
    label: "Presence penalty",
    note: "Makes tokens that have occurred less likely.",
    min: -2,
    max: 2,
    step: 0.05,
    slider: true,
    neutral: 0,
    group: "Repetition",
  },
  {
    name: "frequency_penalty",
    label: "Frequency penalty",
    note: "Makes tokens less likely with each occurrence.",
    min: -2,
    max: 2,
    step: 0.05,
    slider: true,
    neutral: 0,
    group: "Repetition",
  },
  {
    name: "stop",
    label: "Stop at",
    note: "One text a line; the answer ends before it. \\n stands for a new line.",
    list: true,
    group: "Answer",
  },
];

const MAX_STOPS = 4; // limit of the protocol

/** Converts the text of a number, which may have a decimal comma. @param {string} text */
const numberFrom = (text) => (text.trim() ? Number(text.replace(",", ".")) : undefined);

/** Returns the value of a valid text of the field; undefined if it is empty. @param {Field} field @param {string} text */
export function valueOf(field, text) {
  if (!field.list) return numberFrom(text);
  const stops = stopsFrom(text);
  return stops.length ? stops : undefined;
}

/** Returns the reason why a text is not a valid value of the field, or "". @param {Field} field @param {string} text */
export function validationError(field, text) {
  if (field.list) return stopsFrom(text).length > MAX_STOPS ? `At most ${MAX_STOPS} lines.` : "";
  const value = numberFrom(text);
  if (value === undefined) return "";
  if (!Number.isFinite(value)) return "A number, please.";
  if (field.whole && !Number.isInteger(value)) return "A whole number, please.";
  if (field.min !== undefined && value < field.min) return `At least ${field.min}.`;
  if (field.max !== undefined && value > field.max) return `At most ${field.max}.`;
  return "";
}

/** Converts lines to stop strings. @param {string} text */
export const stopsFrom = (text) =>
  text
    .split("\n")
    .filter(Boolean)
    .map((line) => line.replaceAll("\\n", "\n"));
/** @param {string[]} stops */
export const stopsTo = (stops) => stops.map((stop) => stop.replaceAll("\n", "\\n")).join("\n");

/** Replaces lone surrogates, which cannot be sent. @param {string} text */
const wellFormed = (text) => text.toWellFormed?.() ?? text;

/** @param {Turn} turn @returns {Turn} */
const wellFormedTurn = ({ content, reasoning_content: reasoning, ...turn }) => ({
  ...turn,
  content: wellFormed(content),
  ...(reasoning ? { reasoning_content: wellFormed(reasoning) } : {}),
});

/**
 * Returns an answer that was cut inside its reasoning as a message to continue: the server continues an open block.
 * @param {Message} message @returns {Turn}
 */
const openReasoning = ({ role, thinking = "" }) => ({ role, content: `<think>\n${thinking}` });

/**
 * Returns the messages to send, without the oldest if those are left out.
 * @param {{ first?: string }} conversation @param {Message[]} messages
 */
export const sentMessages = ({ first }, messages) =>
  messages.slice(
    Math.max(
      0,
      messages.findIndex(({ id }) => id === first),
    ),
  );

/**
 * Builds the request for the next answer. Unset parameters are not sent, so the server's defaults apply.
 * @param {Conversation} conversation
 * @param {Message[]} messages
 * @param {string} model
 * @param {string} tier the best tier that the key allows
 * @param {boolean} [continues] the last message is an answer that the model should continue
 * @returns {AnswerRequest}
 */
export function requestFor(conversation, messages, model, tier, continues = false) {
  const sent = sentMessages(conversation, messages);
  const turns = sent.flatMap(turnsOf);
  const last = sent.at(-1);
  if (continues && last && !last.content) turns.push(openReasoning(last));
  const system = conversation.system.trim();
  if (system) turns.unshift({ role: "system", content: system });
  const tools = definitionsOf(conversation);
  const { requiresCall } = conversation;
  return {
    model,
    messages: turns.map(wellFormedTurn),
    stream: true,
    stream_options: { include_usage: true },
    service_tier: tier,
    ...(tools.length ? { tools } : {}),
    ...(tools.length && requiresCall && last?.role === "user"
      ? { tool_choice: "required", parallel_tool_calls: false }
      : {}),
    ...(continues ? { continue_final_message: true, add_generation_prompt: false } : {}),
    ...conversation.sampling,
  };
}
