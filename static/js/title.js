// Titles of conversations. Pure.

/** @import { Message } from "./types.js" */

/** Returns the title of a conversation from its first question. @param {Pick<Message, "content" | "files">} question */
export const firstTitle = ({ content, files }) => titleFrom(content || files?.[0]?.name || "");

/**
 * Returns the first line of a question; the list and the top bar truncate it to their width.
 * @param {string} text @param {number} [maximum] characters
 */
export function titleFrom(text, maximum = 160) {
  const line = text.trim().split("\n")[0].replace(/\s+/g, " ");
  const letters = [...line]; // does not split surrogate pairs
  return letters.length > maximum
    ? `${letters
        .slice(0, maximum - 1)
        .join("")
        .trimEnd()}…`
    : line || "Untitled";
}
