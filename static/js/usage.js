// Tokens of one answer of a request. Pure.

/** @import { Message, Usage } from "./types.js" */

/**
 * Returns the usage of one answer of a request. That of several answers has their tokens in all, so those of one are counted
 * by its events.
 * @param {Message} message @param {Usage} usage @param {number} choices
 */
export function usageOf({ pieces = 0 }, usage, choices) {
  if (choices === 1) return usage;
  return { ...usage, completion_tokens: pieces, total_tokens: usage.prompt_tokens + pieces };
}
