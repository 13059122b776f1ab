// Difference of two texts, word by word. Pure.

const MAX_CELLS = 4_000_000; // of the table of common words: about 20 ms

/** @typedef {["same" | "removed" | "added", string]} Part */

/**
 * Returns what two texts share and what differs, in order. Beyond a limit all words between the first and the last difference
 * count as different.
 * @param {string} before @param {string} after @returns {Part[]}
 */
export function difference(before, after) {
  const [a, b] = [before, after].map((text) => text.match(/\s+|[^\s]+/g) ?? []);
  const shortest = Math.min(a.length, b.length);
  let start = 0;
  while (start < shortest && a[start] === b[start]) start++;
  let end = 0;
  while (end < shortest - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const middle = between(a.slice(start, a.length - end), b.slice(start, b.length - end));
  const parts = /** @type {Part[]} */ ([]);
  const words = [...a.slice(0, start).map(same), ...middle, ...a.slice(a.length - end).map(same)];
  for (const [kind, word] of words) {
    const last = parts.at(-1);
    if (last?.[0] === kind) last[1] += word;
    else parts.push([kind, word]);
  }
  return parts;
}

/** @param {string} word @returns {Part} */
const same = (word) => ["same", word];

/** @param {string[]} a @param {string[]} b @returns {Part[]} */
function between(a, b) {
  const width = b.length + 1;
  const isLarge = a.length * b.length > MAX_CELLS;
  // At i * width + j: the length of the longest common sequence of the words from i and from j on
  const common = new Uint16Array(isLarge ? 0 : (a.length + 1) * width);
  if (!isLarge)
    for (let i = a.length - 1; i >= 0; i--)
      for (let j = b.length - 1; j >= 0; j--)
        common[i * width + j] =
          a[i] === b[j]
            ? common[(i + 1) * width + j + 1] + 1
            : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
  const parts = /** @type {Part[]} */ ([]);
  let j = 0;
  for (let i = 0; i < a.length; i++) {
    while (!isLarge && j < b.length && a[i] !== b[j] && common[i * width + j + 1] > common[(i + 1) * width + j])
      parts.push(["added", b[j++]]);
    if (!isLarge && j < b.length && a[i] === b[j]) parts.push(["same", b[j++]]);
    else parts.push(["removed", a[i]]);
  }
  while (j < b.length) parts.push(["added", b[j++]]);
  return parts;
}
