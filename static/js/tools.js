// Tools of a conversation: definitions, calls, and the messages of a request that carry calls and results. Pure.

import { fenced } from "./fenced.js";

/** @import { CallPiece, Message, Tool, ToolCall, Turn } from "./types.js" */

/** Definition that the settings offer as an example. */
export const EXAMPLE_TOOLS = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the current weather in a city.",
      parameters: {
        type: "object",
        properties: {
          city: { type: "string", description: "Name of the city" },
          unit: { type: "string", enum: ["celsius", "fahrenheit"] },
        },
        required: ["city"],
        additionalProperties: false,
      },
      strict: true,
    },
  },
];

/**
 * Parses definitions of tools. Beside OpenAI's list it accepts a single definition, and functions without the envelope.
 * Throws a SyntaxError with a message for the user.
 * @param {string} text @returns {Tool[]}
 */
export function parseTools(text) {
  if (!text.trim()) return [];
  const value = JSON.parse(text);
  return (Array.isArray(value) ? value : [value]).map((given, i) => {
    const { type: _, ...bare } = Object(given);
    const definition = given?.function ?? bare;
    if (typeof definition.name !== "string" || !definition.name)
      throw new SyntaxError(`Tool ${i + 1} has no name, such as {"name": "get_weather", "parameters": {}}.`);
    return { type: "function", function: definition };
  });
}

/** Adds a piece of a tool call to an answer. @param {Message} message @param {CallPiece} piece */
export function appendPiece(message, { index, id = "", function: { name = "", arguments: text = "" } = {} }) {
  message.calls ??= [];
  const call = (message.calls[index] ??= { id, name, arguments: "" });
  call.arguments += text;
}

/**
 * Returns the state of a call. A call that was cut off cannot be answered.
 * @param {ToolCall} call @param {Message} message @returns {"calling" | "called" | "answered" | "cut off"}
 */
export function callState(call, { state, finish, calls }) {
  if (call.result !== undefined) return "answered";
  if (state === "streaming") return call === calls?.at(-1) ? "calling" : "called";
  return (state === "done" && finish !== "length") || isJson(call.arguments) ? "called" : "cut off";
}

/** @param {string} text */
function isJson(text) {
  try {
    return Boolean(JSON.parse(text));
  } catch {
    return false;
  }
}

/** Whether an answer ended with calls that need a result. @param {Message} message */
export const awaitsResults = (message) =>
  (message.state === "done" || message.state === "stopped") &&
  Boolean(message.calls?.some((call) => callState(call, message) === "called"));

/** Returns the text of a message as it is sent: that of its files, each under its name, and its own. @param {Message} message */
export const contentOf = ({ content, files = [] }) =>
  [...files.map(({ name, text }) => `${name}:\n${fenced(text)}`), content].filter(Boolean).join("\n\n");

/**
 * Returns the messages of a request for a message of the conversation. Calls without a result are left out, because chat
 * templates expect a result for each call.
 * @param {Message} message @returns {Turn[]}
 */
export function turnsOf(message) {
  const { role, thinking, calls = [] } = message;
  const content = contentOf(message);
  const answered = calls.filter(({ result }) => result !== undefined);
  if (role === "assistant" && !content && !answered.length) return [];
  if (!answered.length) return [{ role, content }];
  const called = answered.map(({ id, name, arguments: text }) => ({
    id,
    type: /** @type {const} */ ("function"),
    function: { name, arguments: text },
  }));
  return [
    { role, content, ...(thinking ? { reasoning_content: thinking } : {}), tool_calls: called },
    ...answered.map(({ id, result = "" }) => ({ role: "tool", tool_call_id: id, content: result })),
  ];
}

/** Returns the names, arguments and results of the calls of a message as one text. @param {Message} message */
export const callsText = ({ calls = [] }) =>
  calls.map(({ name, arguments: text, result = "" }) => [name, text, result].join("\n")).join("\n");
