// Files of other programs, read into messages of which import.js makes conversations. Pure. The fields are those that
// ChatGPT's export, llama.cpp's pages and Open WebUI write.
import { fenced } from "./fenced.js";
import { newId } from "./ids.js";
import { idOf, joined, list, parsed, record, string } from "./untyped.js";

/** @import { ToolCall } from "./types.js" */

/**
 * A message of another program. Its role is user, assistant, system, tool, or passages for the reasoning of the answer after
 * it; others are passed over. `media` names what is left out, `call` is the id of the call of a result.
 * @typedef {{ key: string, parent: string | null, role: string, text?: string, media?: string[], created?: unknown,
 *   model?: unknown, thinking?: string, calls?: ToolCall[], call?: string | null, name?: string }} Node
 * @typedef {{ title: string, nodes: Node[], current?: unknown, created?: unknown, updated?: unknown, system?: string }} Source
 */

/** Returns the conversations in a file, each in the form of its program. @param {unknown} value @returns {unknown[]} */
export function entriesOf(value) {
  const tables = list(record(record(value).data).data).map(record); // a dump of the database of llama.cpp's older page
  if (!tables.length) return Array.isArray(value) ? value : [value];
  const rows = (/** @type {string} */ name) => list(tables.find((table) => table.tableName === name)?.rows).map(record);
  const groups = Map.groupBy(rows("messages"), ({ convId }) => convId);
  return rows("conversations").map((conv) => ({ conv, messages: groups.get(conv.id) ?? [] }));
}

/** @param {unknown} entry @returns {Source} */
export function foreignConversation(entry) {
  const { mapping, conv, messages, chat = entry } = record(entry);
  if (mapping) return chatGpt(record(entry));
  if (record(chat).history) return openWebUi(record(entry), record(chat));
  if (Array.isArray(messages)) return llamaCpp(record(conv ?? entry), messages.map(record));
  throw new Error("The file has an unknown form.");
}

/** Returns the conversations of llama.cpp's JSON lines: a session, then its messages. @param {unknown[]} lines */
export function sessions(lines) {
  const read = /** @type {{ conv: unknown, messages: unknown[] }[]} */ ([]);
  for (const { type, message, ...conv } of lines.map(record))
    if (type === "session") read.push({ conv, messages: [] });
    else if (type === "message") read.at(-1)?.messages.push(message);
  return read;
}

/** Returns the name of an image or attachment. @param {unknown} type @param {unknown} name */
const mediaName = (type, name) =>
  `${/image|audio|video/i.exec(string(type))?.[0].toLowerCase() ?? "file"}${string(name) && `: ${name}`}`;

/** Returns the arguments of a call as the text of a JSON object. @param {unknown} given @returns {string} */
function argumentsOf(given) {
  const value = typeof given === "string" ? parsed(given) : given;
  if (typeof value === "string" && value !== given) return argumentsOf(value); // encoded twice
  return JSON.stringify(value === record(value) ? value : { input: given || undefined });
}

/** @param {Record<string, any>} conversation one of conversations.json @returns {Source} */
function chatGpt({ title, mapping, current_node: current, create_time: created, update_time: updated }) {
  const nodes = Object.entries(record(mapping)).map(([key, node]) => {
    const { parent, message } = record(node);
    return { key, parent: idOf(parent), ...chatGptMessage(key, record(message)) };
  });
  return { title: string(title), nodes, current, created, updated };
}

/** @param {string} key @param {Record<string, any>} message @returns {Omit<Node, "key" | "parent">} */
function chatGptMessage(key, { author, content, metadata, recipient: to, create_time: created }) {
  const { content_type: type, text, result, thoughts, user_profile: profile, ...more } = record(content);
  const { is_visually_hidden_from_conversation: isHidden, model_slug: model, attachments } = record(metadata);
  const { role, name } = record(author);
  if (type === "user_editable_context") return { role: "system", text: joined([profile, more.user_instructions]) };
  if (isHidden || type === "reasoning_recap") return { role: "" };
  const reasoning = list(thoughts).flatMap((one) => [record(one).summary, record(one).content]);
  if (type === "thoughts") return { role: "passages", thinking: joined(reasoning) };
  const parts = list(more.parts).map((part) => record(typeof part === "string" ? { text: part } : part));
  const body = joined([...parts.map((part) => part.text), text, result]);
  if (role === "assistant" && body && string(to) && to !== "all")
    return { role, created, model, calls: [{ id: key, name: to, arguments: argumentsOf(body) }] };
  const files = list(attachments).map(record);
  const isNamed = (/** @type {string} */ pointer) => files.some(({ id }) => string(id) && pointer.endsWith(id));
  const images = parts.filter(({ asset_pointer: pointer }) => string(pointer) && !isNamed(pointer));
  const media = [
    ...files.map((file) => mediaName(file.mimeType, file.name)),
    ...images.map((part) => mediaName(part.content_type, part.asset_pointer.split("/").at(-1))),
  ];
  const shown = type === "code" && body ? fenced(body) : body;
  return { role: string(role), created, model, media, text: shown, name: string(name) };
}

/** @param {Record<string, any>} conv @param {Record<string, any>[]} messages @returns {Source} */
function llamaCpp({ name, currNode: current, lastModified: updated }, messages) {
  const nodes = messages.map(({ toolCalls, toolCallId, tool_calls, tool_call_id, ...message }, at) => {
    const { id = at, parent = messages[at - 1]?.id ?? at - 1, content, timestamp: created = id, model } = message;
    const [, thought, text] = /^\s*<think>([^]*?)<\/think>([^]*)$/.exec(string(content)) ?? [];
    const files = list(message.extra).map(record);
    const texts = files.flatMap((file) => (string(file.content) ? [file.name, fenced(file.content)] : []));
    const called = toolCalls ?? tool_calls;
    return {
      ...{ key: idOf(id) ?? "", parent: idOf(parent), role: message.type === "root" ? "" : string(message.role) },
      text: joined([text ?? content, ...texts]),
      media: files.filter((file) => !string(file.content)).map((file) => mediaName(file.type, file.name)),
      ...{ created, model, thinking: joined([message.reasoningContent ?? message.thinking, thought]) },
      calls: list(typeof called === "string" ? parsed(called) : called).map((call) => {
        const { name, arguments: given } = record(record(call).function);
        return { id: idOf(record(call).id) ?? newId(), name: string(name), arguments: argumentsOf(given) };
      }),
      call: idOf(toolCallId ?? tool_call_id),
    };
  });
  return { title: string(name), nodes, current, updated };
}

/** @param {Record<string, any>} entry @param {Record<string, any>} chat @returns {Source} */
function openWebUi({ title, created_at: created, updated_at: updated }, chat) {
  const { messages, currentId: current } = record(chat.history);
  const nodes = Object.entries(record(messages)).flatMap(([key, value]) => {
    const { role, parentId: parent, content, timestamp: created, model, files } = record(value);
    const media = list(files).map((file) => mediaName(record(file).type, record(file).name));
    const { before, after, ...called } = withoutDetails(string(content));
    const node = { key, parent: idOf(parent), role: string(role), created, model };
    if (!called.calls.length) return [{ ...node, ...called, text: after, media }];
    const calling = { ...node, ...called, key: `${key} calls`, text: before };
    return [calling, { ...node, parent: calling.key, text: after, media }];
  });
  const system = string(record(chat.params).system);
  return { title: string(chat.title ?? title), nodes, current, created, updated, system };
}

/**
 * Takes reasoning and calls out of an answer of Open WebUI, which writes them into the text as elements. Returns also the
 * texts before and after the last call. Linear in the text, unlike an expression that looks for pairs of tags.
 * @param {string} content
 */
function withoutDetails(content) {
  const pieces = content.split("</details>");
  const calls = /** @type {ToolCall[]} */ ([]);
  const passages = [];
  let [before, after] = ["", ""];
  for (const piece of pieces.splice(0, pieces.length - 1)) {
    const at = piece.search(/<details type="(?:reasoning|tool_calls)"/);
    const tag = at < 0 ? "" : piece.slice(at, piece.indexOf(">", at) + 1);
    after += tag ? piece.slice(0, at) : `${piece}</details>`;
    const inside = unescaped(piece.slice(at + tag.length).replace(/^\s*<summary>.*\n/, ""));
    if (tag.includes('"reasoning"')) passages.push(inside.replace(/^> ?/gm, "").trim());
    else if (tag) {
      const value = (/** @type {string} */ name) => unescaped(tag.split(` ${name}="`)[1]?.split('"')[0] ?? "");
      const result = string(parsed(value("result"))) || value("result");
      calls.push({ id: value("id"), name: value("name"), arguments: argumentsOf(value("arguments")), result });
      [before, after] = [before + after, ""];
    }
  }
  return { before: before.trim(), after: (after + pieces[0]).trim(), thinking: joined(passages), calls };
}

const ENTITIES = ["&quot;", "&#x27;", "&#39;", "&lt;", "&gt;", "&amp;"];
/** @param {string} text */
const unescaped = (text) => text.replace(/&(?:quot|#x27|#39|lt|gt|amp);/g, (each) => `"''<>&`[ENTITIES.indexOf(each)]);
