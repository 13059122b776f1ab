// DOM of a Markdown text that may still grow: closed blocks are built once and never changed, the last one is patched in
// place. Reading, selecting and scrolling in finished blocks is not disturbed; only those that use a link or a footnote before
// its definition are drawn twice.
import { BlockSplitter } from "./blocks.js";
import { codeFrame, highlight, growCode } from "./code.js";
import { h } from "./dom.js";
import { renderMarkdown, renderPlain } from "./markdown.js";
import { References } from "./references.js";
import { repairMarkdown } from "./repair_markdown.js";

/** @import { Block } from "./blocks.js" */

const MAX_REDRAW_MS = 6; // ms per frame for finished blocks whose definitions have arrived

export class MarkdownStream {
  #splitter = new BlockSplitter();
  #queue = "";
  #live = /** @type {HTMLElement | null} */ (null);
  #frame = 0;
  #timer = 0;
  #cost = 0;
  #finished = false;
  #references = new References();
  #unresolved = /** @type {{ node: HTMLElement, block: Block, missing: Set<string> }[]} */ ([]);
  #outdated = /** @type {{ node: HTMLElement, block: Block }[]} */ ([]);

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
  }

  /** Whether no text has arrived. */
  get isEmpty() {
    return !this.#queue && !this.root.firstChild;
  }

  /** Adds text, which is painted with the next frame. @param {string} text */
  write(text) {
    this.#queue += text;
    if (this.#frame || this.#timer) return;
    // An expensive paint is followed by a pause, so that a huge block cannot block the page.
    if (this.#cost > 8) this.#timer = window.setTimeout(() => this.#next(), this.#cost * 4);
    else this.#next();
  }

  /** Ends the text: paints at once, without the appearance of an unfinished block. */
  finish() {
    this.#cancel();
    this.#finished = true;
    this.#paint();
  }

  #next() {
    this.#timer = 0;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      const start = performance.now();
      this.#paint();
      this.#cost = performance.now() - start;
    });
  }

  #cancel() {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#timer);
    this.#frame = this.#timer = 0;
  }

  #paint() {
    const closed = this.#splitter.push(this.#queue);
    this.#queue = "";
    if (this.#finished) closed.push(...this.#splitter.finish());
    for (const block of closed) {
      this.#draw(block, true);
      this.#live = null;
    }
    const open = this.#splitter.peek();
    if (open) this.#draw(open, false);
    this.#redraw();
  }

  /** @param {Block} block @param {boolean} closed */
  #draw(block, closed) {
    // A row that began a piece of a table may become the first line of another block.
    if (this.#live?.localName === "tbody" && !(block.head && block.cut)) {
      this.#live.remove();
      this.#live = null;
    }
    this.#live ??= this.#begin(block);
    this.#live.classList.toggle("cut", block.cut);
    if (block.kind === "code") return drawCode(this.#live, block, closed);
    if (block.kind === "plain") return patch(this.#live, renderPlain(block.source));
    this.#drawText(this.#live, block, closed);
  }

  /** Returns a new node for a block: a further piece of a table is a group of rows. @param {Block} block */
  #begin({ head, cut }) {
    const table = cut && head ? this.root.lastElementChild?.querySelector(":scope > .table-frame > table") : null;
    const node = table ? h("tbody") : h("div", { class: "block" });
    (table ?? this.root).append(node);
    return node;
  }

  /** @param {HTMLElement} node @param {Block} block @param {boolean} closed */
  #drawText(node, block, closed) {
    const text = block.head + block.source;
    const { fragment, missing } = renderMarkdown(closed ? text : repairMarkdown(text), {
      mayGrow: !closed,
      references: this.#references,
    });
    if (block.cut && block.start) fragment.querySelector("ol")?.setAttribute("start", String(block.start));
    patch(node, node.localName === "tbody" ? (fragment.querySelector("tbody") ?? h("tbody")) : fragment);
    if (!closed) return;
    for (const frame of node.querySelectorAll(".code")) highlight(/** @type {HTMLElement} */ (frame));
    if (missing.size) this.#unresolved.push({ node, block, missing });
  }

  /** Draws blocks again whose definitions have arrived since: as many as a frame allows, or all of them at the end. */
  #redraw() {
    const fresh = this.#references.takeFresh();
    if (fresh.length) {
      const isOutdated = (/** @type {{ missing: Set<string> }} */ { missing }) =>
        fresh.some((label) => missing.has(label));
      this.#outdated.push(...this.#unresolved.filter(isOutdated));
      this.#unresolved = this.#unresolved.filter((one) => !isOutdated(one));
    }
    const start = performance.now();
    while (this.#outdated.length && (this.#finished || performance.now() - start < MAX_REDRAW_MS)) {
      const { node, block } = /** @type {{ node: HTMLElement, block: Block }} */ (this.#outdated.shift());
      this.#drawText(node, block, true);
    }
  }
}

/** @param {HTMLElement} root @param {Block} block @param {boolean} closed */
function drawCode(root, block, closed) {
  const text = block.source.replace(/\n$/, "");
  const shown = root.firstElementChild;
  const isCode = shown instanceof HTMLElement && shown.classList.contains("code");
  const frame = isCode ? shown : codeFrame(block.info, "");
  if (!isCode) root.replaceChildren(frame);
  growCode(frame, text);
  if (closed) highlight(frame);
}

/**
 * Makes `to`'s children equal to `from`'s and keeps every unchanged node.
 * @param {Node} to
 * @param {Node} from
 */
export function patch(to, from) {
  const want = [...from.childNodes];
  for (let i = 0; i < want.length; i++) {
    const old = to.childNodes[i];
    if (!old) to.appendChild(want[i]);
    else if (!old.isEqualNode(want[i])) patchNode(old, want[i]);
  }
  while (to.childNodes.length > want.length) to.lastChild?.remove();
}

/** @param {ChildNode} old @param {ChildNode} next */
function patchNode(old, next) {
  if (old instanceof Text && next instanceof Text) {
    if (next.data.startsWith(old.data)) old.appendData(next.data.slice(old.data.length));
    else old.data = next.data;
  } else if (
    old instanceof Element &&
    next instanceof Element &&
    old.nodeName === next.nodeName &&
    sameAttributes(old, next) &&
    old.className !== "code"
  ) {
    patch(old, next);
  } else {
    old.replaceWith(next);
  }
}

/** @param {Element} a @param {Element} b */
const sameAttributes = (a, b) =>
  a.attributes.length === b.attributes.length &&
  [...a.attributes].every(({ name, value }) => b.getAttribute(name) === value);

/** Renders a complete text. @param {HTMLElement} root @param {string} text */
export function renderWhole(root, text) {
  const stream = new MarkdownStream(root);
  stream.write(text);
  stream.finish();
  return stream;
}

/** Returns the text of each block of a rendered text. @param {HTMLElement} root @returns {string[]} */
export function blockTexts(root) {
  return [...root.children]
    .map((block) => {
      const copied = /** @type {HTMLElement} */ (block.cloneNode(true));
      for (const math of copied.querySelectorAll(".math"))
        math.textContent = /** @type {HTMLElement} */ (math).dataset.tex ?? "";
      return (copied.textContent ?? "").trim();
    })
    .filter(Boolean);
}
