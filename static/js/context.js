// Choice of messages to leave out when a conversation exceeds the model's context.
import { countTokens } from "./api.js";
import { requestFor, sentMessages } from "./sampling.js";
import { callsText, contentOf } from "./tools.js";

/** @import { Conversation, Message } from "./types.js" */

const MAX_PROMPT_SHARE = 0.75; // share of the context for the prompt afterwards; the rest is for later answers

/**
 * Returns the id of the first message to send so that the prompt fits: a question, with at least one turn less than before.
 * Null if only the last question is left.
 * @param {Conversation} conversation @param {Message[]} messages to which an answer is requested
 */
export async function firstMessageThatFits(conversation, messages) {
  const sent = sentMessages(conversation, messages);
  const questions = sent.filter(({ role }) => role === "user");
  if (questions.length < 2) return null;
  const share = await shareThatFits(conversation, sent);
  const size = (/** @type {Message[]} */ messages) =>
    messages.reduce((sum, message) => sum + contentOf(message).length + callsText(message).length, 0);
  const maximum = share * size(sent);
  const fits = (/** @type {Message} */ { id }) =>
    size(sent.slice(sent.findIndex((message) => message.id === id))) <= maximum;
  return (questions.slice(1).find(fits) ?? /** @type {Message} */ (questions.at(-1))).id;
}

/**
 * Returns the messages that would be left out, oldest first, if the next one did not fit; empty if none can be.
 * @param {Conversation} conversation @param {Message[]} path @param {Pick<Message, "content" | "files">} next
 */
export async function messagesLeftOut(conversation, path, next) {
  const messages = [...path, { id: "", parent: null, role: /** @type {const} */ ("user"), created: 0, ...next }];
  const first = await firstMessageThatFits(conversation, messages);
  const sent = sentMessages(conversation, messages);
  return sent.slice(
    0,
    Math.max(
      0,
      sent.findIndex(({ id }) => id === first),
    ),
  );
}

/**
 * Returns the share of the messages' characters that fits.
 * @param {Conversation} conversation @param {Message[]} sent @returns {Promise<number>}
 */
async function shareThatFits(conversation, sent) {
  try {
    const { count, max_model_len: length } = await countTokens(requestFor(conversation, sent, "", "").messages);
    const longest = Number(conversation.sampling.max_tokens ?? 0);
    return Math.max(0, Math.min(MAX_PROMPT_SHARE * length, length - longest - 1)) / count;
  } catch {
    return 0.5; // too long to be counted: if half does not fit either, the user can leave out more
  }
}
