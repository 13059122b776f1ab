// Strong emphasis that CommonMark's flanking rules refuse, such as **Note:**text and **「强调」**文字. Its stars are replaced
// by marks that the parser of markdown.js reads as emphasis. Pure, and linear in the text.

// Unicode noncharacters: no text contains them
export const STRONG_OPEN = "\ufdd0";
export const STRONG_CLOSE = "\ufdd1";

const PIECES = /\\[^]|`+|\*+|\n[ \t]*(?=\n|(?:[-*+]|\d{1,9}[.)])[ \t])/g;
const SPACE = /^$|\s/;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const SENTENCE_END = /[:;.!?…%)\]}"'”’»]/;
const NON_ASCII = /[^\x00-\x7f]/;

/** Replaces the stars of pairs that only a reader would match. @param {string} source @returns {string} */
export function markEmphasis(source) {
  if (!source.includes("**")) return source;
  const marks = /** @type {{ at: number, mark: string }[]} */ ([]);
  let open = /** @type {{ at: number, isStrict: boolean }[]} */ ([]);
  PIECES.lastIndex = 0;
  for (let found = PIECES.exec(source); found; found = PIECES.exec(source)) {
    const [piece] = found;
    if (piece[0] === "\n") open = [];
    else if (piece[0] === "`") PIECES.lastIndex = afterCode(source, found.index, piece);
    else if (piece === "**") {
      const run = flanking(source, found.index);
      const last = open.at(-1);
      if (last && run.closes && last.at + 2 < found.index) {
        open.pop();
        if (last.isStrict && run.isStrictEnd) continue;
        marks.push({ at: last.at, mark: STRONG_OPEN }, { at: found.index, mark: STRONG_CLOSE });
      } else if (run.opens) open.push({ at: found.index, isStrict: run.isStrictStart });
    }
  }
  return replaceAt(source, marks);
}

/** Returns what a run of two stars may do: by CommonMark (strict), and to a reader. @param {string} source @param {number} at */
function flanking(source, at) {
  const before = [...source.slice(Math.max(0, at - 2), at)].at(-1) ?? "";
  const after = [...source.slice(at + 2, at + 4)][0] ?? "";
  const isBoundary = (/** @type {string} */ char) => SPACE.test(char) || PUNCTUATION.test(char);
  const isStrictStart = !SPACE.test(after) && (!PUNCTUATION.test(after) || isBoundary(before));
  const isStrictEnd = !SPACE.test(before) && (!PUNCTUATION.test(before) || isBoundary(after));
  const opens = isStrictStart || (!SPACE.test(after) && NON_ASCII.test(before));
  const ends = SENTENCE_END.test(before) || NON_ASCII.test(before + after);
  return { isStrictStart, isStrictEnd, opens, closes: isStrictEnd || (!SPACE.test(before) && ends) };
}

/** Returns the position after a code span, or after its backticks if they are not closed.
 * @param {string} source @param {number} at @param {string} ticks */
function afterCode(source, at, ticks) {
  const from = at + ticks.length;
  for (let end = source.indexOf(ticks, from); end >= 0;) {
    const run = /^`+/.exec(source.slice(end, end + ticks.length + 1))?.[0] ?? "";
    if (run.length === ticks.length) return end + run.length;
    while (source[end] === "`") end++;
    end = source.indexOf(ticks, end);
  }
  return from;
}

/** @param {string} source @param {{ at: number, mark: string }[]} marks */
function replaceAt(source, marks) {
  let text = "";
  let from = 0;
  for (const { at, mark } of marks.sort((a, b) => a.at - b.at)) {
    text += source.slice(from, at) + mark;
    from = at + 2;
  }
  return text + source.slice(from);
}
