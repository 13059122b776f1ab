// Incremental splitter of Markdown: takes text in pieces and returns top-level blocks as soon as no later text can change
// them. Pure, and linear in the text: each line is processed once. Independent of HTML.

/**
 * A closed block never changes. `cut` marks a piece of a block that is too long to handle whole; a further piece of a table
 * adds rows to it. `head`: the first two lines of a table, whose `source` has the rows only. `piece`: number of the table's
 * piece. `list`: the block continues after
 * an empty line if indented. `start` and `items`: number of the first item, and items so far.
 * @typedef {{ kind: "text" | "code" | "plain", source: string, info: string, cut: boolean, list: boolean, blank: boolean,
 *   start: number, items: number, head: string, piece: number, fence: string, indent: number, inner: string }} Block
 */

const MAX_LINE_CHARACTERS = 8_000; // a longer line is shown as plain text, in pieces of this size
const MAX_TEXT_CHARACTERS = 40_000;
const MAX_PIECE_CHARACTERS = 6_000; // a growing piece is parsed with each token; a list or paragraph continues in the next one
const MAX_CODE_CHARACTERS = 200_000;
const MAX_TABLE_PIECE_CHARACTERS = 4_000;
const MAX_TABLE_PIECES = 10; // the browser lays out the whole table with each row; then a new one repeats the head

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const INNER_FENCE = /^[ \t]{2,}(`{3,}|~{3,})/;
const LIST_ITEM = /^( {0,3})(?:[-*+]|(\d{1,9})[.)])(?:[ \t]|$)/;
const FOOTNOTE = /^ {0,3}\[\^[^\]\s]+\]:/;
const TABLE_DELIMITER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const AFTER_TABLE = /^(?: {4}|\t| {0,3}(?:>|[-*+][ \t]|\d{1,9}[.)][ \t]|(?:[-*_][ \t]*){3,}$))/;
const HEADING = /^ {0,3}#{1,6}(?:[ \t]|$)/;
const INDENTED = /^(?: {2,}|\t)/;

/** @param {Block["kind"]} kind @param {Partial<Block>} [extra] @returns {Block} */
const newBlock = (kind, extra = {}) => ({
  kind,
  source: "",
  info: "",
  cut: false,
  list: false,
  blank: false,
  start: 0,
  items: 0,
  head: "",
  piece: 0,
  fence: "",
  indent: 0,
  inner: "",
  ...extra,
});

export class BlockSplitter {
  #open = /** @type {Block | null} */ (null);
  #partial = ""; // the unfinished line
  #inLongLine = false;

  /** Adds text and returns the blocks that it closed. @param {string} text @returns {Block[]} */
  push(text) {
    const closed = /** @type {Block[]} */ ([]);
    let from = 0;
    for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", from)) {
      const line = this.#partial + text.slice(from, at);
      this.#partial = "";
      this.#line(line.endsWith("\r") ? line.slice(0, -1) : line, closed);
      from = at + 1;
    }
    this.#partial += text.slice(from);
    if (this.#partial.length > MAX_LINE_CHARACTERS) this.#partial = this.#spill(this.#partial, closed);
    return closed;
  }

  /** Returns the open block with its unfinished line, or null. @returns {Block | null} */
  peek() {
    const open = this.#open;
    if (!open)
      return this.#partial
        ? newBlock(this.#inLongLine ? "plain" : "text", { source: this.#partial, cut: this.#inLongLine })
        : null;
    if (!this.#partial) return isBlank(open) ? null : open;
    if (open.kind === "code" && closes(open, this.#partial)) return open;
    // Unindented text after a list's blank line is already the next block; as a separate block, it does not move the list.
    return {
      ...open,
      source: open.source + (open.kind === "code" ? dedent(this.#partial, open.indent) : this.#partial),
    };
  }

  /** Ends the text and returns the remaining blocks. @returns {Block[]} */
  finish() {
    const closed = /** @type {Block[]} */ ([]);
    if (this.#partial) this.#line(this.#partial, closed);
    this.#partial = "";
    this.#close(closed);
    return closed;
  }

  /** @param {string} line @param {Block[]} closed */
  #line(line, closed) {
    if (this.#inLongLine) {
      this.#inLongLine = false;
      if (line) closed.push(newBlock("plain", { source: line, cut: true }));
      return;
    }
    if (line.length > MAX_LINE_CHARACTERS) {
      const rest = this.#spill(line, closed);
      this.#inLongLine = false;
      if (this.#open?.kind === "code") this.#open.source += `${rest}\n`;
      else if (rest) closed.push(newBlock("plain", { source: rest, cut: true }));
      return;
    }
    if (this.#open?.kind === "code") this.#codeLine(this.#open, line, closed);
    else this.#textLine(line, closed);
  }

  /** @param {Block} open @param {string} line @param {Block[]} closed */
  #codeLine(open, line, closed) {
    if (closes(open, line)) return this.#close(closed);
    open.source += `${dedent(line, open.indent)}\n`;
    if (open.source.length > MAX_CODE_CHARACTERS) this.#continue(closed);
  }

  /** @param {string} line @param {Block[]} closed */
  #textLine(line, closed) {
    const open = this.#open;
    if (open?.inner) {
      if (line.trim().startsWith(open.inner) && !line.trim().replaceAll(open.inner[0], "")) open.inner = "";
      return this.#append(line, closed);
    }
    if (!line.trim()) {
      if (open && !open.list) return this.#close(closed);
      if (open) {
        open.source += "\n";
        open.blank = true;
      }
      return;
    }
    if (open?.list) {
      const inner = INNER_FENCE.exec(line);
      if (inner) open.inner = inner[1];
      if (!inner && open.blank && !INDENTED.test(line) && !LIST_ITEM.test(line)) this.#close(closed);
    }
    if (open?.head && AFTER_TABLE.test(line)) this.#close(closed);
    const fence = this.#open?.inner ? null : FENCE.exec(line);
    if (fence) {
      this.#close(closed);
      this.#open = newBlock("code", { indent: fence[1].length, fence: fence[2], info: fence[3].trim() });
    } else if (HEADING.test(line)) {
      this.#close(closed);
      closed.push(newBlock("text", { source: line }));
    } else {
      this.#append(line, closed);
    }
  }

  /** @param {string} line @param {Block[]} closed */
  #append(line, closed) {
    if (this.#open && !this.#open.list && !this.#open.head && this.#beginTable(this.#open, line, closed)) return;
    if (this.#open && this.#open.source.length > MAX_PIECE_CHARACTERS) this.#splitText(this.#open, line, closed);
    const open = (this.#open ??= newBlock("text"));
    open.source += `${line}\n`;
    const [, indent, number] = (!open.inner && LIST_ITEM.exec(line)) || [];
    if (indent !== undefined && !open.list) Object.assign(open, { indent: indent.length, start: Number(number ?? 0) });
    if (indent !== undefined && indent.length <= open.indent) open.items++;
    open.list ||= indent !== undefined || FOOTNOTE.test(line);
    open.blank = false;
    if (open.head && open.source.length > MAX_TABLE_PIECE_CHARACTERS) this.#continueTable(open, closed);
    else if (open.source.length > MAX_TEXT_CHARACTERS) this.#close(closed);
  }

  /**
   * Continues a long list or paragraph in another block, if it can be divided before this line.
   * @param {Block} open @param {string} line @param {Block[]} closed
   */
  #splitText(open, line, closed) {
    const { list, indent, start, items, head, inner, source } = open;
    const [, spaces] = LIST_ITEM.exec(line) ?? [];
    const isDivisible = list
      ? spaces !== undefined && spaces.length <= indent
      : !/^ {0,3}>/.test(source) && !/\|/.test(line);
    if (!isDivisible || head || inner) return;
    open.cut = true;
    this.#close(closed);
    this.#open = newBlock("text", { cut: true, list, indent, start: start && start + items });
  }

  /** @param {Block} open @param {Block[]} closed */
  #continueTable({ head, piece }, closed) {
    this.#close(closed);
    const next = piece + 1;
    this.#open = newBlock("text", { head, piece: next, cut: next % MAX_TABLE_PIECES > 0 });
  }

  /**
   * Makes a table a block of its own when its second line is known. @param {Block} open @param {string} line
   * @param {Block[]} closed
   */
  #beginTable(open, line, closed) {
    const at = open.source.lastIndexOf("\n", open.source.length - 2) + 1;
    const header = open.source.slice(at);
    if (!TABLE_DELIMITER.test(line) || !line.includes("|") || cells(header) !== cells(line)) return false;
    open.source = open.source.slice(0, at);
    if (at) this.#close(closed);
    this.#open = newBlock("text", { head: header + line + "\n" });
    return true;
  }

  /** Emits an overlong line in pieces and returns the rest of it. @param {string} line @param {Block[]} closed */
  #spill(line, closed) {
    if (this.#open?.kind === "code") {
      this.#open.source += line;
      if (this.#open.source.length > MAX_CODE_CHARACTERS) this.#continue(closed);
      return "";
    }
    this.#close(closed);
    this.#inLongLine = true;
    let from = 0;
    for (; line.length - from > MAX_LINE_CHARACTERS; from += MAX_LINE_CHARACTERS) {
      closed.push(newBlock("plain", { source: line.slice(from, from + MAX_LINE_CHARACTERS), cut: true }));
    }
    return line.slice(from);
  }

  /** Closes an overlong code block and opens a block that continues it. @param {Block[]} closed */
  #continue(closed) {
    const { info, fence, indent } = /** @type {Block} */ (this.#open);
    this.#close(closed);
    this.#open = newBlock("code", { info, fence, indent, cut: true });
  }

  /** @param {Block[]} closed */
  #close(closed) {
    if (this.#open && !isBlank(this.#open)) closed.push(this.#open);
    this.#open = null;
  }
}

/** Whether there is nothing to show. @param {Block} block */
const isBlank = ({ kind, source, head, piece }) => kind !== "code" && !source.trim() && (!head || piece > 0);

/** Returns the number of cells of a table's row. @param {string} row */
const cells = (row) =>
  row
    .trim()
    .replace(/^\||(?<!\\)\|$/g, "")
    .split(/(?<!\\)\|/).length;

/** @param {Block} open @param {string} line */
const closes = (open, line) => {
  const text = line.trim();
  return text.startsWith(open.fence) && !text.replaceAll(open.fence[0], "");
};

/** @param {string} line @param {number} indent */
const dedent = (line, indent) => {
  let from = 0;
  while (from < indent && line[from] === " ") from++;
  return line.slice(from);
};
