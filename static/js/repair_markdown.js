// Owns the look of an unfinished block: closes what the model opened and has not closed yet, hides what cannot be judged yet,
// so that stars, brackets and half a table do not flash up and vanish. Pure; a finished block never passes here.

import { formulaAt } from "./math.js";

const UNDECIDED = /^[ \t]*(?:[-*+]|\d{1,9}[.)]?|#{1,6}|>+|[`~]{1,2}|(?:`{3,}|~{3,})[^`]*|=+|-{2,}|\*{2,}|_{1,})[ \t]*$/;
const LONGEST = 6_000; // healing is looks only; a longer tail is shown as it is

/** @param {string} source @returns {string} */
export function heal(source) {
  const start = tailStart(source);
  let tail = source.slice(start);
  if (tail.length > LONGEST) return source;
  const lineStart = tail.lastIndexOf("\n") + 1;
  if (UNDECIDED.test(tail.slice(lineStart))) tail = tail.slice(0, lineStart);
  return source.slice(0, start) + healInline(healTable(tail));
}

/** Where the last paragraph, item or table begins. */
function tailStart(source) {
  const breaks = /\n[ \t]*\n|\n(?=[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t])/g;
  let start = 0;
  for (let match = breaks.exec(source); match; match = breaks.exec(source)) start = breaks.lastIndex;
  return start;
}

/** A table is a table once its second row is whole; before that its pipes would show as text. */
function healTable(tail) {
  if (!/^[ \t]*\|/.test(tail)) return tail;
  return (tail.match(/\n/g) ?? []).length < 2 ? "" : tail;
}

/** A formula without an end stands as it is; all before it is healed. */
function healInline(tail) {
  const at = openFormula(tail);
  return at < 0 ? healMarks(tail) : healMarks(tail.slice(0, at)) + tail.slice(at);
}

/** Where a formula begins that has no end yet; -1 if none does. */
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

function healMarks(tail) {
  const text = tail
    .replace(/(?<!\\)!?\[([^[\]\n]*)\]\([^)\n]*$/, "$1")
    .replace(/(?<!\\)!?\[([^[\]\n]*)\]?$/, "$1");
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
    } else at++;
  }
  return finish(text, -1, open);
}

/** Opens or closes an emphasis. */
function mark(open, run, before, after) {
  if (run.length > 3 || (run[0] === "~" && run.length !== 2)) return;
  if (open.at(-1) === run && /\S/.test(before)) open.pop();
  else if (/\S/.test(after) && (run[0] !== "_" || !/\w/.test(before))) open.push(run);
  else if (after === "" && !/\w/.test(before)) open.push(run);
}

/** @param {number} from where an open code span's content begins, -1 if none */
function finish(text, from, open) {
  if (from === text.length) return finish(text.slice(0, text.length - open[open.length - 1].length), -1, open.slice(0, -1));
  let body = from < 0 ? text.replace(/(?<=\s|^)[*_~]{1,3}$/, "") : text;
  if (body !== text) open = open.slice(0, -1);
  const space = /\s*$/.exec(body)?.[0] ?? "";
  body = body.slice(0, body.length - space.length);
  return body + [...open].reverse().join("") + space;
}
