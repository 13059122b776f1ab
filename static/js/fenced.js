// Code blocks of Markdown. Pure.

/** Returns a text as a code block, with a fence that does not occur in it. @param {string} text */
export function fenced(text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}
