// Repair of an unfinished block for display: closes open markup and hides markup that is still ambiguous, so that stars,
// brackets and half a table do not appear for a moment. Pure; not used for finished blocks.

import { formulaAt } from "./math.js";

const UNDECIDED = /^[ \t]*(?:[-*+]|\d{1,9}[.)]?|#{1,6}|>+|[`~]{1,2}|(?:`{3,}|~{3,})[^`]*|=+|-{2,}|\*{2,}|_{1,})[ \t]*$/;
// An alert's first line, a footnote's label, or a definition without its target
const UNFINISHED_LABEL = /^(?:[ \t>]*>[ \t]*\[!?\w*\]?| {0,3}\[\^[^\]\n]*\]?:?| {0,3}\[[^\]\n]+\]:[ \t]*\S{0,12})$/;
const ELEMENT = /^<(\/?)(sub|sup|kbd)>/i;
const UNFINISHED_ELEMENT = /^<\/?(?:b|br|br *\/?|k|kb|kbd|s|su|sub|sup)?$/i;
const MAX_CHARACTERS = 6_000; // characters; a longer tail is shown without repair, which affects appearance only

/** @param {string} source @returns {string} */
export function repairMarkdown(source) {
  const start = tailStart(source);
  let tail = source.slice(start);
  if (tail.length > MAX_CHARACTERS) return source;
  const lineStart = tail.lastIndexOf("\n") + 1;
  const line = tail.slice(lineStart);
  if (UNDECIDED.test(line) || UNFINISHED_LABEL.test(line)) tail = tail.slice(0, lineStart);
  return source.slice(0, start) + repairInline(hideUnfinishedTable(tail));
}

/** Returns the start of the last paragraph, item or table. @param {string} source */
function tailStart(source) {
  const breaks = /\n[ \t]*\n|\n(?=[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t])/g;
  let start = 0;
  for (let match = breaks.exec(source); match; match = breaks.exec(source)) start = breaks.lastIndex;
  return start;
}

/**
 * Hides a table until its second row is complete; before that its pipes would be shown as text.
 * @param {string} tail
 */
function hideUnfinishedTable(tail) {
  if (!/^[ \t]*\|/.test(tail)) return tail.replace(/\n[ \t]*\|[^\n]*(?:\n[ \t]*\|?[-:| \t]*)?$/, "\n");
  return (tail.match(/\n/g) ?? []).length < 2 ? "" : tail;
}

/** Repairs the text before an unfinished formula, which stays unchanged. @param {string} tail */
function repairInline(tail) {
  const at = openFormula(tail);
  return at < 0 ? closeMarks(tail) : closeMarks(tail.slice(0, at)) + tail.slice(at);
}

/** Returns the start of a formula that has no end yet, or -1. @param {string} text */
function openFormula(text) {
  let at = 0;
  while (at < text.length) {
    if (text[at] === "`") {
      const run = /^`+/.exec(text.slice(at))?.[0] ?? "`";
      const end = text.indexOf(run, at + run.length);
      if (end < 0) return -1;
      at = end + run.length;
      continue;
    }
    const formula = text[at] === "$" || text[at] === "\\" ? formulaAt(text, at) : null;
    if (formula === "open") return at;
    at += formula?.raw.length ?? (text[at] === "\\" ? 2 : 1);
  }
  return -1;
}

/** @param {string} tail */
function closeMarks(tail) {
  const text = tail.replace(/(?<!\\)!?\[([^[\]\n]*)\]\([^)\n]*$/, "$1").replace(/(?<!\\)!?\[([^[\]\n]*)\]?$/, "$1");
  const open = /** @type {string[]} */ ([]);
  let at = 0;
  while (at < text.length) {
    const char = text[at];
    const formula = char === "$" || char === "\\" ? formulaAt(text, at) : null;
    if (formula && formula !== "open") at += formula.raw.length;
    else if (char === "\\") at += 2;
    else if (char === "`") {
      const run = /^`+/.exec(text.slice(at))?.[0] ?? "`";
      const end = text.indexOf(run, at + run.length);
      if (end < 0) return finish(text, at + run.length, [...open, run]);
      at = end + run.length;
    } else if (char === "*" || char === "_" || char === "~") {
      const run = /^(?:\*+|_+|~+)/.exec(text.slice(at))?.[0] ?? char;
      mark(open, run, text[at - 1] ?? " ", text[at + run.length] ?? "");
      at += run.length;
    } else if (char === "<" && UNFINISHED_ELEMENT.test(text.slice(at, at + 8))) {
      return finish(text.slice(0, at), -1, open);
    } else {
      const [, slash, tag] = (char === "<" && ELEMENT.exec(text.slice(at, at + 6))) || [];
      if (tag && !slash) open.push(`</${tag}>`);
      else if (tag && open.at(-1) === `</${tag}>`) open.pop();
      at++;
    }
  }
  return finish(text, -1, open);
}

/** Opens or closes emphasis. @param {string[]} open @param {string} run @param {string} before @param {string} after */
function mark(open, run, before, after) {
  if (run.length > 3 || (run[0] === "~" && run.length !== 2)) return;
  if (open.at(-1) === run && /\S/.test(before)) open.pop();
  else if (/\S/.test(after) && (run[0] !== "_" || !/\w/.test(before))) open.push(run);
  else if (after === "" && !/\w/.test(before)) open.push(run);
}

/**
 * @param {string} text @param {number} from start of an open code span's content, or -1
 * @param {string[]} open @returns {string}
 */
function finish(text, from, open) {
  if (from === text.length)
    return finish(text.slice(0, text.length - open[open.length - 1].length), -1, open.slice(0, -1));
  let body = from < 0 ? text.replace(/(?<=\s|^)[*_~]{1,3}$/, "") : text;
  if (body !== text) open = open.slice(0, -1);
  const space = /\s*$/.exec(body)?.[0] ?? "";
  body = body.slice(0, body.length - space.length);
  return body + [...open].reverse().join("") + space;
}
