// Conversation export, as Markdown or JSON. The first half is pure.

/** @import { Conversation } from "./types.js" */

/** @param {Conversation} conversation */
export function asMarkdown(conversation) {
  const parts = [`# ${conversation.title}`];
  if (conversation.system.trim()) parts.push(`> ${conversation.system.trim().replaceAll("\n", "\n> ")}`);
  for (const { role, content } of conversation.messages)
    parts.push(role === "user" ? "## You" : "## Answer", content.trim());
  return `${parts.join("\n\n")}\n`;
}

/** Returns messages and request parameters, without the page's internal fields. @param {Conversation} conversation */
export function asJson({ title, created, model, system, sampling, messages }) {
  const plain = messages.map(({ role, content, thinking, created: at, usage, finish, state }) => ({
    role,
    content,
    reasoning: thinking || undefined,
    created: new Date(at).toISOString(),
    usage,
    finish_reason: finish,
    state,
  }));
  return `${JSON.stringify({ title, created: new Date(created).toISOString(), model, system, sampling, messages: plain }, null, 2)}\n`;
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
