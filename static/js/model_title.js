// Title of a conversation by the model: one line, asked for after the first answer, in the tier that gives way to all others.
import { complete } from "./api.js";
import { readPref } from "./prefs.js";
import { firstTitle } from "./title.js";
import { Tree } from "./tree.js";

/** @import { Conversation } from "./types.js" */

const TASK = "Write a title of at most six words for this conversation, in its language. Reply with the title alone.";
const MAX_READ = 1500; // characters of a message that the model sees
const MAX_TITLE = 80; // characters

/**
 * Gives a conversation a title after its first answer, unless it was renamed. Without one, that of its first line stays.
 * @param {import("./store.js").Store} store @param {Conversation} conversation @param {string} tier
 */
export async function giveTitle(store, conversation, tier) {
  const { id, model } = conversation;
  const [question, answer, ...later] = new Tree(conversation).path;
  const isFirst = question && answer?.state === "done" && answer.content && !later.length;
  if (!isFirst || !readPref("titles", true) || conversation.title !== firstTitle(question)) return;
  const messages = [question, answer].map(({ role, content }) => ({ role, content: content.slice(0, MAX_READ) }));
  const body = { model, messages: [...messages, { role: "user", content: TASK }], max_tokens: 24, temperature: 0 };
  const title = titleIn(await complete({ ...body, service_tier: tier }).catch(() => ""));
  if (title && store.get(id)?.title === firstTitle(question)) await store.change(id, (row) => (row.title = title));
}

/** Returns the title in a model's answer; "" if there is none. @param {string} text */
export function titleIn(text) {
  const line = text.trim().split("\n")[0];
  const bare = line
    .replace(/^[^:]{0,40}\btitle\b[^:]{0,40}:/i, "")
    .replace(/^[\s"'“”„«»*_#`]+|[\s"'“”„«»*_#`.]+$/g, "");
  const isTitle = bare.length <= MAX_TITLE && /\p{L}{2}/u.test(bare) && !/[.!?]\s|:$/.test(bare); // sentences are an answer
  return isTitle ? bare : "";
}
