// Separation of reasoning and answer, for models that write their reasoning between <think> and </think>. Text is separated
// as it arrives; the state is stored in the message, as the page may be reloaded in between.

/** @import { Message } from "./types.js" */

const OPEN = "<think>";
const CLOSE = "</think>";

/**
 * @param {Message} message
 * @param {string} text next piece of the stream
 * @returns {{ text: string, thinking: string }} parts of it, and of the held text, that can be shown now
 */
export function separate(message, text) {
  let rest = (message.held ?? "") + text;
  let thinking = "";
  message.held = "";
  if (!message.stage) {
    const start = rest.trimStart();
    if (start.length < OPEN.length && OPEN.startsWith(start)) {
      message.held = rest;
      return { text: "", thinking };
    }
    message.stage = start.startsWith(OPEN) ? "thinking" : "speaking";
    if (message.stage === "thinking") rest = start.slice(OPEN.length);
  }
  if (message.stage === "thinking") {
    const end = rest.indexOf(CLOSE);
    const kept = end < 0 ? overlap(rest) : 0;
    thinking = rest.slice(0, end < 0 ? rest.length - kept : end);
    if (!message.thinking) thinking = thinking.trimStart();
    if (end < 0) {
      message.held = kept ? rest.slice(-kept) : "";
      return { text: "", thinking };
    }
    message.stage = "answering";
    rest = rest.slice(end + CLOSE.length);
  }
  if (message.stage === "answering" && !message.content) rest = rest.trimStart();
  return { text: rest, thinking };
}

/** Returns the held text at the end of the stream, as it was not a tag after all. @param {Message} message */
export function flush(message) {
  const held = message.held ?? "";
  delete message.held;
  return message.stage === "thinking" ? { text: "", thinking: held } : { text: held, thinking: "" };
}

/** Returns the length of the longest end of `text` that may be the beginning of CLOSE. @param {string} text */
function overlap(text) {
  for (let length = Math.min(CLOSE.length - 1, text.length); length > 0; length--) {
    if (CLOSE.startsWith(text.slice(-length))) return length;
  }
  return 0;
}
