// Conversation export, as Markdown or JSON. The first half is pure.

import { fenced } from "./fenced.js";
import { printJson } from "./print_json.js";
import { contentOf } from "./tools.js";
import { Tree } from "./tree.js";

/** @import { Conversation, ConversationRow, Message, MessageRow, ToolCall } from "./types.js" */

/** Name and version of the JSON in which the page exports and imports conversations. */
export const FORMAT = "carousel.conversations";
export const VERSION = 1;

/** Headings of the Markdown. A line of a message that looks like one gets a backslash. */
export const HEADING = /^(?:## (?:You|Answer)|### (?:Call of `(.*)`|Result))$/;
const ESCAPED = /^\\+(?=#)/;

/** @param {string} line */
const withEscape = (line) => (HEADING.test(line.replace(ESCAPED, "")) ? `\\${line}` : line);
/** @param {string} line */
export const withoutEscape = (line) =>
  ESCAPED.test(line) && HEADING.test(line.replace(ESCAPED, "")) ? line.slice(1) : line;

/** @param {Conversation} conversation @param {Message[]} messages those that are shown */
export function asMarkdown({ title, system }, messages) {
  const parts = [`# ${title}`];
  if (system.trim()) parts.push(`> ${system.trim().replaceAll("\n", "\n> ")}`);
  for (const message of messages) {
    const { role, calls = [] } = message;
    parts.push(
      role === "user" ? "## You" : "## Answer",
      ...[contentOf(message).trim().split("\n").map(withEscape).join("\n"), ...calls.flatMap(callParts)].filter(
        Boolean,
      ),
    );
  }
  return `${parts.join("\n\n")}\n`;
}

/** @param {ToolCall} call */
const callParts = ({ name, arguments: text, result }) => [
  `### Call of \`${name}\``,
  fenced(printJson(text)),
  ...(result === undefined ? [] : ["### Result", fenced(printJson(result))]),
];

/**
 * Returns parts of a file with all branches and settings of conversations. Fields of this browser's rows, and those that
 * resume an answer of this server, are left out.
 * @param {Conversation[]} conversations
 */
export async function asJson(conversations) {
  const parts = [];
  for (const conversation of conversations) {
    const { id, revision, writer, unsent, changes, gone, ...fields } = /** @type {ConversationRow & Conversation} */ (
      conversation
    );
    const tree = new Tree(conversation);
    const messages = conversation.messages.map((message) => {
      const {
        conversation: _,
        revision,
        writer,
        unsent,
        stream,
        last,
        run,
        choice,
        replayOf,
        ...kept
      } = /** @type {MessageRow} */ (message);
      const parent = tree.parentOf(message)?.id ?? null;
      return { ...kept, parent, state: kept.state === "streaming" ? "stopped" : kept.state };
    });
    parts.push(`${parts.length ? "," : ""}\n${JSON.stringify({ ...fields, messages })}`);
    if (parts.length % 20 === 0) await new Promise((resolve) => setTimeout(resolve)); // lets the page draw
  }
  return [`{"format": "${FORMAT}", "version": ${VERSION}, "conversations": [`, ...parts, "\n]}\n"];
}

/** @param {string} name @param {string[]} parts of the file @param {string} type */
export function download(name, parts, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(parts, { type }));
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
