// Detection of TeX in a text: \( \), \[ \] and $$ $$ always, single $ only if it is clearly mathematics, so that prices stay
// text. Pure.

const CLOSE = /** @type {Record<string, string>} */ ({ "\\(": "\\)", "\\[": "\\]", $$: "$$" });
const MAX_CHARACTERS = 8000;
const ONE_LETTER = /^[A-Za-z]'*$/;
const SIGNS = /[\\^_=+<>/|*]|\w\(.+\)|\w-\w/;
const WORDS = /[A-Za-z]{3,}\s+(?:\S+\s+)*?[A-Za-z]{3,}/;

/**
 * Returns the formula that begins at a position of a text: null without a formula, "open" if it has no end yet.
 * @param {string} text @param {number} at @param {string} before the character before it
 * @returns {{ raw: string, tex: string, display: boolean } | "open" | null}
 */
export function formulaAt(text, at, before = text[at - 1] ?? "") {
  const mark = text.slice(at, at + 2);
  const close = CLOSE[mark];
  if (!close) return text[at] === "$" ? singleDollar(text, at, before) : null;
  const end = endOf(text, at + 2, close);
  if (end < 0) return text.length - at > MAX_CHARACTERS || /\n[ \t]*\n/.test(text.slice(at)) ? null : "open";
  const tex = text.slice(at + 2, end).trim();
  if (!tex || /\n[ \t]*\n/.test(tex)) return null; // a formula contains no empty line
  return { raw: text.slice(at, end + 2), tex, display: mark !== "\\(" };
}

/**
 * Returns the position of the first unescaped `close`.
 * @param {string} text @param {number} from @param {string} close
 */
function endOf(text, from, close) {
  for (let end = text.indexOf(close, from); end >= 0; end = text.indexOf(close, end + 1)) {
    const slashes = /\\*$/.exec(text.slice(from, end))?.[0].length ?? 0;
    if (slashes % 2 === 0) return end;
  }
  return -1;
}

/** @param {string} text @param {number} at @param {string} before */
function singleDollar(text, at, before) {
  if (/[\w$\\]/.test(before) || /[\s$]/.test(text[at + 1] ?? " ")) return null;
  const end = endOf(text, at + 1, "$");
  const tex = text.slice(at + 1, end);
  if (end < 0 || tex.length > 400 || /\n|\s$|^\s/.test(tex) || /[\w$]/.test(text[end + 1] ?? "")) return null;
  const plain = tex.replace(/\\[A-Za-z]+(?:\{[^}]*\})?/g, "");
  if (WORDS.test(plain) || !(ONE_LETTER.test(tex) || SIGNS.test(tex))) return null;
  return { raw: text.slice(at, end + 1), tex, display: false };
}
