// Conversation export, as Markdown or JSON. The first half is pure.

import { printJson } from "./print_json.js";

/** @import { Conversation, ToolCall } from "./types.js" */

/** @param {Conversation} conversation */
export function asMarkdown(conversation) {
  const parts = [`# ${conversation.title}`];
  if (conversation.system.trim()) parts.push(`> ${conversation.system.trim().replaceAll("\n", "\n> ")}`);
  for (const { role, content, calls = [] } of conversation.messages)
    parts.push(
      role === "user" ? "## You" : "## Answer",
      ...[content.trim(), ...calls.flatMap(callParts)].filter(Boolean),
    );
  return `${parts.join("\n\n")}\n`;
}

/** @param {ToolCall} call */
const callParts = ({ name, arguments: text, result }) => [
  `### Call of \`${name}\``,
  fenced(printJson(text)),
  ...(result === undefined ? [] : ["### Result", fenced(printJson(result))]),
];

/** Returns a text as a code block, with a fence that does not occur in it. @param {string} text */
function fenced(text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}

/** Returns messages and request parameters, without the page's internal fields. @param {Conversation} conversation */
export function asJson({ title, created, model, system, sampling, tools, messages }) {
  const plain = messages.map(({ role, content, thinking, calls, created: at, usage, finish, state }) => ({
    role,
    content,
    reasoning: thinking || undefined,
    tool_calls: calls,
    created: new Date(at).toISOString(),
    usage,
    finish_reason: finish,
    state,
  }));
  return `${JSON.stringify({ title, created: new Date(created).toISOString(), model, system, sampling, tools, messages: plain }, null, 2)}\n`;
}

/** @param {string} name @param {string} text @param {string} type */
export function download(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** @param {string} title */
export const fileName = (title) =>
  title
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-+|-+$/g, "")
    .toLowerCase()
    .slice(0, 60) || "conversation";
