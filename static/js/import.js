// Import of conversations: a file becomes conversations with new ids. Independent of the page.
import { FORMAT, HEADING, VERSION, withoutEscape } from "./export.js";
import { newId } from "./ids.js";
import { entriesOf, foreignConversation, sessions } from "./import_formats.js";
import { FIELDS } from "./sampling.js";
import { titleFrom } from "./title.js";
import { alike, idOf, joined, list, parsed, record, string } from "./untyped.js";

/** @import { Conversation, Message, ToolCall } from "./types.js" */
/** @import { Node, Source } from "./import_formats.js" */

const MAX_FILE_BYTES = 128 * 1024 * 1024;
const MAX_CONVERSATIONS = 10_000;
const MAX_MESSAGES = 10_000; // of a conversation
const MAX_ALL_MESSAGES = 200_000;
const MAX_CHARACTERS = 2_000_000; // of a text
const MAX_MS = 1e14; // a time in the year 5138
const FORMS =
  "This page imports its own exports (JSON or Markdown), ChatGPT's conversations.json, and exports of llama.cpp and Open WebUI.";

/**
 * Returns the conversations of a file, and how many images and attachments they lack. Throws an Error that states the
 * fault, and which files can be imported.
 * @param {Blob} file @returns {Promise<{ conversations: Conversation[], leftOut: number }>}
 */
export async function readFile(file) {
  try {
    atMost(MAX_FILE_BYTES, file.size, "bytes in the file");
    const text = await file.text();
    const value = /^\s*[[{]/.test(text) ? parseJson(text) : null;
    const isOwn = record(value).format === FORMAT;
    const sources = !value ? [markdown(text)] : isOwn ? [] : entriesOf(value).map(foreignConversation);
    const read = isOwn ? ownConversations(record(value)) : sources.map(conversationOf);
    const conversations = read.filter(({ messages }) => messages.length);
    checkSizes(conversations);
    return { conversations, leftOut: sources.flatMap(({ nodes }) => nodes.flatMap(({ media = [] }) => media)).length };
  } catch (error) {
    throw new Error(`${/** @type {Error} */ (error).message} Nothing was imported. ${FORMS}`);
  }
}

/** Parses JSON, or the lines of JSON of llama.cpp's page. @param {string} text @returns {unknown} */
function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    const isLines = record(parsed(text.split("\n", 1)[0])).type === "session";
    const lines = isLines ? text.trim().split("\n").map(parsed) : [undefined];
    if (!lines.includes(undefined)) return sessions(lines);
    throw new Error(`The file is not valid JSON: ${/** @type {Error} */ (error).message}.`);
  }
}

/** @param {Conversation[]} conversations */
function checkSizes(conversations) {
  if (!conversations.length) throw new Error("The file has no messages.");
  atMost(MAX_CONVERSATIONS, conversations.length, "conversations in the file");
  const all = conversations.flatMap(({ messages }) => messages);
  atMost(MAX_ALL_MESSAGES, all.length, "messages in the file");
  for (const { title, messages } of conversations)
    atMost(MAX_MESSAGES, messages.length, `messages in “${title.slice(0, 60)}”`);
  const texts = [...conversations, ...all, ...all.flatMap(({ calls = [] }) => calls)].flatMap(Object.values);
  for (const text of texts) atMost(MAX_CHARACTERS, string(text).length, "characters in one of the texts");
}

/** @param {number} most @param {number} count @param {string} things */
function atMost(most, count, things) {
  const [given, allowed] = [count, most].map((number) => number.toLocaleString("en"));
  if (count > most) throw new Error(`There are ${given} ${things}; at most ${allowed} can be imported.`);
}

/** Makes a conversation of a foreign one. @param {Source} source @returns {Conversation} */
function conversationOf({ title, nodes, current, system, ...times }) {
  const question = nodes.find(({ role, text }) => role === "user" && text?.trim());
  const name = titleFrom(title.trim() || question?.text || "");
  const began = msOf(times.created, Date.now());
  const messages = /** @type {Message[]} */ ([]);
  const places = /** @type {Map<string | null, Omit<Place, "passages"> & Partial<Place>>} */ (new Map());
  const order = inOrder(name, nodes);
  for (const node of order) {
    const place = { passages: [], ...places.get(node.parent), node };
    const message = messageOf(place, began);
    if (message) messages.push(message);
    places.set(node.key, message ? { node, above: message } : place);
  }
  messages.sort((a, b) => a.created - b.created); // stable, and no message is older than its parent
  const chosen = /** @type {Record<string, string>} */ ({});
  const prompts = [];
  let read = places.get(idOf(current)) ?? places.get(order.at(-1)?.key ?? null);
  for (; read; read = places.get(read.node.parent)) {
    if (read.above) chosen[read.above.parent ?? ""] = read.above.id;
    if (read.node.role === "system") prompts.unshift(read.node.text);
  }
  const updated = msOf(times.updated, messages.at(-1)?.created ?? began);
  const settings = { system: joined([system, ...prompts]), model: "", sampling: {} };
  return { id: newId(), title: name, created: began, updated, ...settings, messages, chosen };
}

/**
 * Returns a message; null for a node that is a part of another message or of the settings.
 * @typedef {{ node: Node, above?: Message, passages: string[] }} Place a foreign message, the message that its children
 *   follow, and reasoning for the next answer
 * @param {Place} place @param {number} began
 */
function messageOf({ node, above, passages }, began) {
  const { role, thinking = "" } = node;
  const text = joined([node.text, ...(node.media ?? []).map((name) => `[${name}]`)]);
  const isOpen = (/** @type {ToolCall} */ { id, result }) => result === undefined && id === (node.call ?? id);
  const open = role === "tool" ? above?.calls?.find(isOpen) : undefined;
  const own = { id: node.call ?? newId(), name: node.name || "tool", arguments: "{}", result: text };
  const calls = role === "tool" && !open && text ? [own] : (node.calls ?? []);
  if (open) open.result = text;
  if (role === "passages") passages.push(thinking);
  const isAnswer = calls.length > 0 || (role === "assistant" && Boolean(text || thinking));
  if (!isAnswer && (role !== "user" || !text)) return null;
  const created = Math.max(msOf(node.created, above ? above.created + 1 : began), above?.created ?? 0);
  const message = { id: newId(), parent: above?.id ?? null, content: role === "tool" ? "" : text, created };
  if (!isAnswer) return /** @type {Message} */ ({ ...message, role });
  const reasoning = joined([...passages.splice(0), thinking]) || undefined;
  const parts = {
    model: string(node.model) || undefined,
    thinking: reasoning,
    calls: calls.length ? calls : undefined,
  };
  return /** @type {Message} */ ({ ...message, role: "assistant", state: "done", ...parts });
}

/** Returns a time, which is given in seconds or in milliseconds, in ms. @param {unknown} time @param {number} otherwise */
function msOf(time, otherwise) {
  if (typeof time !== "number" || !(time > 0 && time < MAX_MS)) return otherwise;
  return Math.round(time < 1e11 ? time * 1000 : time);
}

/**
 * Returns messages, each after its parent. A parent that is missing counts as the beginning: llama.cpp's page leaves out
 * the root, and a message can outlive those above it.
 * @template {{ key: string, parent: string | null }} N @param {string} title @param {N[]} nodes @returns {N[]}
 */
function inOrder(title, nodes) {
  const keys = new Set(nodes.map(({ key }) => key));
  if (keys.size < nodes.length) throw new Error(`“${title}” has several messages with the same id.`);
  const children = Map.groupBy(nodes, ({ parent }) => (parent !== null && keys.has(parent) ? parent : null));
  const order = [...(children.get(null) ?? [])];
  for (const { key } of order) for (const child of children.get(key) ?? []) order.push(child);
  if (order.length < nodes.length) throw new Error(`“${title}” has messages that follow each other in a circle.`);
  return order;
}

const isTime = (/** @type {unknown} */ ms) => typeof ms === "number" && Math.abs(ms) < MAX_MS;
const isFunction = (/** @type {unknown} */ definition) => Boolean(string(record(definition).name));
const oneOf = (/** @type {string[]} */ ...texts) => texts.includes.bind(texts);
const TEXTS = { id: "", "parent?": "", content: "", "model?": "", "finish?": "", "thinking?": "" };
const TIMES = { created: isTime, "thinkingAt?": isTime, "sentAt?": isTime, "firstAt?": isTime, "lastAt?": isTime };
const STATES = { role: oneOf("user", "assistant"), "state?": oneOf("done", "stopped", "error"), "resumed?": true };
const COUNTS = { "thoughtMs?": 0, "pieces?": 0, "pausedMs?": 0 };
const CALL = { id: "", name: "", arguments: "", "result?": "", "startedAt?": 0, "problem?": "" };
const FILE = { name: "", text: "", "tokens?": 0, "isTooLong?": true };
const USAGE = {
  prompt_tokens: 0,
  completion_tokens: 0,
  total_tokens: 0,
  "prompt_tokens_details?": { "cached_tokens?": 0 },
  "time_ms?": { "*": 0 },
};
const FAULT = { message: "", "code?": "", "status?": 0 };
const SAMPLING = Object.fromEntries(FIELDS.map(({ name, list: isList }) => [`${name}?`, isList ? [""] : 0]));
const MESSAGE = {
  ...TEXTS,
  ...TIMES,
  ...STATES,
  ...COUNTS,
  "calls?": [CALL],
  "files?": [FILE],
  "usage?": USAGE,
  "error?": FAULT,
};
const TOOL = { type: "", function: isFunction };
const SERVER_TOOLS = { "serverTools?": [{ server: "", name: "", tool: TOOL }] };
const TOOLS = { "tools?": [TOOL], ...SERVER_TOOLS, "requiresCall?": true };
const SETTINGS = {
  system: "",
  model: "",
  sampling: SAMPLING,
  ...TOOLS,
  "first?": "",
  "pinned?": true,
  "chosen?": { "*": "" },
};
const CONVERSATION = { title: "", created: isTime, updated: isTime, ...SETTINGS, messages: [MESSAGE] };

/** @param {Record<string, any>} file @returns {Conversation[]} */
function ownConversations({ version, conversations }) {
  if (version !== VERSION) throw new Error(`The version of the format must be ${VERSION}.`);
  return list(conversations).map((given, i) => {
    const { first, chosen = {}, ...own } = alike(given, CONVERSATION, `conversations[${i}]`);
    const messages = /** @type {Message[]} */ (own.messages);
    const definitions = JSON.stringify([own.tools, own.serverTools], null, 2); // longer, the deeper it is nested
    atMost(MAX_CHARACTERS, definitions.length, "characters in the tools of a conversation");
    const nodes = messages.map(({ id, parent = null }) => ({ key: id, parent }));
    const ids = new Map(inOrder(own.title.slice(0, 60), nodes).map(({ key }) => [key, newId()]));
    for (const message of messages)
      Object.assign(message, { id: ids.get(message.id), parent: ids.get(message.parent ?? "") ?? null });
    const choices = Object.entries(chosen).filter(([at, id]) => ids.has(id) && (!at || ids.has(at)));
    own.chosen = Object.fromEntries(choices.map(([at, id]) => [ids.get(at) ?? "", ids.get(id)]));
    return { ...own, id: newId(), first: ids.get(first) };
  });
}

/** Reads Markdown as this page exports it. @param {string} text @returns {Source} */
function markdown(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const nodes = /** @type {(Node & { text: string, calls: ToolCall[] })[]} */ ([]);
  const system = [];
  for (let at = 0; at < lines.length; at++) {
    const [heading = "", call] = HEADING.exec(lines[at]) ?? [];
    const node = nodes.at(-1);
    const fence = heading.startsWith("### ") && /^`{3,}$/.exec(lines[at + 2])?.[0];
    const end = fence ? lines.indexOf(fence, at + 3) : -1;
    if (heading.startsWith("## ")) {
      const role = heading === "## You" ? "user" : "assistant";
      nodes.push({ key: `${at}`, parent: node ? node.key : null, role, text: "", calls: [] });
    } else if (node && end > 0) {
      const block = lines.slice(at + 3, (at = end)).join("\n");
      if (call !== undefined) node.calls.push({ id: newId(), name: call, arguments: block });
      else Object.assign(node.calls.at(-1) ?? {}, { result: block });
    } else if (node) node.text += `${withoutEscape(lines[at])}\n`;
    else if (lines[at].startsWith(">")) system.push(lines[at].replace(/^> ?/, ""));
  }
  if (!nodes.length) throw new Error("The file has an unknown form; an archive must be unpacked first.");
  const title = /^# (.*)/.exec(lines[0])?.[1] ?? "";
  return { title, nodes: nodes.map((node) => ({ ...node, text: node.text.trim() })), system: system.join("\n") };
}
