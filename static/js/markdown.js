// Conversion of Markdown to safe DOM. Model output is untrusted: raw HTML is shown as text, nothing is loaded, only http(s)
// and mailto links work, and text that could overload the parser is shown plain. DOMPurify is the second line of defence.
import DOMPurify from "../vendor/dompurify/purify.es.mjs";
import { Lexer, Marked, Parser, Tokenizer } from "../vendor/marked/marked.esm.js";
import { h } from "./dom.js";
import { markEmphasis, STRONG_CLOSE, STRONG_OPEN } from "./emphasis.js";
import { completeFragment } from "./fragment.js";
import { formulaAt } from "./math.js";
import { noteKey, References } from "./references.js";

const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;
const TAGS =
  "p br strong em del sub sup kbd code pre a ul ol li blockquote div hr table thead tbody tr th td h1 h2 h3 h4 h5 h6";
const CLEAN = {
  ALLOWED_TAGS: TAGS.split(" "),
  ALLOWED_ATTR: ["href", "title", "align", "start", "class"],
  ALLOWED_URI_REGEXP: SAFE_LINK,
  ADD_URI_SAFE_ATTR: ["align", "start"], // otherwise the rule for links would apply to these as well
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: /** @type {const} */ (true),
};

/** @param {string} text */
const escape = (text) => text.replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);

/**
 * Returns a permitted link target without control characters and spaces (which browsers ignore), or null.
 * @param {string} href
 */
function safeHref(href) {
  const plain = href.replace(/[\u0000-\u0020\u007f-\u00a0\u200b-\u200f\u2028\u2029]/g, "");
  return SAFE_LINK.test(plain) ? plain : null;
}

const parser = new Marked({
  gfm: true,
  breaks: true,
  async: false,
  tokenizer: {
    // Without a token the text is escaped like any other.
    html: () => undefined,
    tag: () => undefined,
    // A line such as "[Note]: important" is text, not a definition without a valid target.
    def(source) {
      const found = Tokenizer.prototype.def.call(this, source);
      return found && safeHref(found.href) ? found : undefined;
    },
    reflink(source, links) {
      const found = this.rules.inline.reflink.exec(source) ?? this.rules.inline.nolink.exec(source);
      const label = (found?.[2] || found?.[1] || "").replace(/\s+/g, " ").toLowerCase();
      if (label && !links[label]) parsing.missing.add(label);
      return false;
    },
    // One tilde means "about", as in "~5 to ~10".
    del: (source) => (/^~~(?!~)/.test(source) ? false : undefined),
  },
  renderer: {
    html: ({ text }) => escape(text),
    link({ href, title, tokens }) {
      const safe = safeHref(href);
      const inner = this.parser.parseInline(tokens);
      return safe ? `<a href="${escape(safe)}"${title ? ` title="${escape(title)}"` : ""}>${inner}</a>` : inner;
    },
    // An image would send a request to another server; it becomes a link instead.
    image({ href, text }) {
      const safe = safeHref(href);
      const label = escape(text || "image");
      return safe ? `<a href="${escape(safe)}">${label}</a>` : label;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    code: ({ text, lang }) => `<pre><code class="language-${escape(lang ?? "")}">${escape(text)}</code></pre>`,
  },
});

/** State of the block being parsed: whether it may still grow, known definitions, its own footnotes, unknown labels. */
let parsing = {
  mayGrow: false,
  references: new References(),
  notes: /** @type {Set<string>} */ (new Set()),
  missing: /** @type {Set<string>} */ (new Set()),
};

// The HTML elements that are not shown as text. They have no attributes, and a pair does not contain itself.
const ELEMENT = /<(?:br|sub|sup|kbd)\b/i;
const PAIR = /^<(sub|sup|kbd)>((?:(?!<\/?\1>)[^]){1,400})<\/\1>/i;
const NOTE_START = /^ {0,3}\[\^[^\]\s]{1,80}\]:/m;
// Further paragraphs of a footnote are indented.
const NOTE =
  /^ {0,3}\[\^([^\]\s]{1,80})\]:[ \t]*(.*(?:\n(?! {0,3}\[\^[^\]\s]{1,80}\]:)[^\n]*\S.*|\n(?:[ \t]*\n)+(?: {2,}|\t).*\S.*)*)(?:\n+|$)/;

/** @param {{ raw: string, tex: string, display: boolean }} formula */
const mathToken = ({ raw, tex, display }) => ({ type: "math", raw, tex, display });

/** Formulas are extracted before Markdown, as TeX contains its markup characters; code is extracted before formulas. */
parser.use({
  extensions: [
    {
      name: "mathBlock",
      level: "block",
      start: (source) => /^ {0,3}(?:\$\$|\\\[)/m.exec(source)?.index,
      tokenizer(source) {
        const indent = /^ {0,3}(?=\$\$|\\\[)/.exec(source)?.[0].length;
        if (indent === undefined) return undefined;
        const found = formulaAt(source, indent, "");
        if (!found || found === "open") return undefined;
        const rest = /^[ \t]*[.,;]?[ \t]*(?:\n+|$)/.exec(source.slice(indent + found.raw.length));
        return rest
          ? { ...mathToken(found), type: "mathBlock", raw: source.slice(0, indent + found.raw.length + rest[0].length) }
          : undefined;
      },
      renderer: ({ tex }) => `<p>${codeOf(tex, true)}</p>`,
    },
    {
      name: "math",
      level: "inline",
      start: (source) => /\$|\\[[(]/.exec(source)?.index,
      tokenizer(source, tokens) {
        const found = formulaAt(source, 0, tokens.at(-1)?.raw.at(-1) ?? "");
        if (found === "open") return parsing.mayGrow ? plainToken(source) : plainToken(source.slice(0, 2));
        if (!found) return /^\\[[(]/.test(source) ? plainToken(source.slice(0, 2)) : undefined;
        return mathToken(found);
      },
      renderer: ({ tex, display }) => codeOf(tex, display),
    },
    {
      name: "strongByReader",
      level: "inline",
      start: (source) => source.indexOf(STRONG_OPEN),
      tokenizer(source) {
        const end = source[0] === STRONG_OPEN ? closingMark(source) : -1;
        if (end < 0) return undefined;
        return {
          type: "strongByReader",
          raw: source.slice(0, end + 1),
          tokens: this.lexer.inlineTokens(source.slice(1, end)),
        };
      },
      renderer(token) {
        return `<strong>${this.parser.parseInline(token.tokens ?? [])}</strong>`;
      },
    },
    {
      name: "element",
      level: "inline",
      start: (source) => ELEMENT.exec(source)?.index,
      tokenizer(source) {
        const [raw, tag, text] = /^<(br)\s*\/?>/i.exec(source) ?? PAIR.exec(source) ?? [];
        if (!raw) return undefined;
        return { type: "element", raw, tag: tag.toLowerCase(), tokens: this.lexer.inlineTokens(text ?? "") };
      },
      renderer({ tag, tokens = [] }) {
        return tag === "br" ? "<br>" : `<${tag}>${this.parser.parseInline(tokens)}</${tag}>`;
      },
    },
    {
      name: "footnote",
      level: "block",
      start: (source) => NOTE_START.exec(source)?.index,
      tokenizer(source) {
        const [raw, label, text] = NOTE.exec(source) ?? [];
        if (!raw) return undefined;
        parsing.notes.add(noteKey(label));
        return {
          type: "footnote",
          raw,
          label,
          tokens: this.lexer.blockTokens(text.replace(/^(?: {1,4}|\t)/gm, ""), []),
        };
      },
      renderer({ label, tokens = [] }) {
        return `<div class="footnote"><sup>${escape(label)}</sup>${this.parser.parse(tokens)}</div>`;
      },
    },
    {
      name: "footnoteUse",
      level: "inline",
      start: (source) => source.indexOf("[^"),
      tokenizer(source) {
        const [raw, label] = /^\[\^([^\]\s]{1,80})\]/.exec(source) ?? [];
        if (!raw) return undefined;
        const key = noteKey(label);
        if (parsing.notes.has(key) || parsing.references.notes.has(key)) return { type: "footnoteUse", raw, label };
        parsing.missing.add(key);
        return plainToken(raw);
      },
      renderer: ({ label }) => `<sup class="footnote-use">${escape(label)}</sup>`,
    },
  ],
});

/** Returns the position of the mark that closes the first one, or -1. @param {string} source */
function closingMark(source) {
  let depth = 0;
  for (let at = 0; at < source.length; at++) {
    if (source[at] === STRONG_OPEN) depth++;
    else if (source[at] === STRONG_CLOSE && --depth === 0) return at;
  }
  return -1;
}

/** @param {string} text */
const plainToken = (text) => ({ type: "text", raw: text, text });
/** @param {string} tex @param {boolean} display */
const codeOf = (tex, display) => `<code class="math${display ? " display" : ""}">${escape(tex)}</code>`;

/**
 * Returns whether a text could overflow the parser's stack or take very long: deep nesting, many brackets, stars or pipes.
 * @param {string} source
 */
function isTooComplex(source) {
  if (/^[ \t]*(?:(?:[-*+>]|\d{1,9}[.)])[ \t]*){20}/m.test(source) && !/^[ \t]*(?:(?:- ?)+|(?:\* ?)+)$/m.test(source))
    return true;
  if (/^[ \t]{60}/m.test(source)) return true;
  if (/[[\](){}*_~`<!\\&]{60}/.test(source)) return true;
  const marks = source.match(/[[\]*_~`<]/g)?.length ?? 0;
  return marks > 400 && marks > source.length / 6;
}

/** Renders text without Markdown. @param {string} source @returns {DocumentFragment} */
export function renderPlain(source) {
  const fragment = document.createDocumentFragment();
  fragment.append(h("p", { class: "plain" }, source));
  return fragment;
}

/**
 * Renders one block of Markdown, and adds its definitions to `references` if it is complete.
 * @param {string} source @param {{ mayGrow?: boolean, references?: References }} [options] mayGrow: it may be unfinished
 * @returns {{ fragment: DocumentFragment, missing: Set<string> }} missing: labels that it uses and that are not defined
 */
export function renderMarkdown(source, { mayGrow = false, references = new References() } = {}) {
  parsing = { mayGrow, references, notes: new Set(), missing: new Set() };
  const { notes, missing } = parsing;
  if (isTooComplex(source)) return { fragment: renderPlain(source), missing };
  let fragment;
  try {
    const lexer = new Lexer(parser.defaults);
    const links = /** @type {References["links"]} */ (Object.assign(lexer.tokens.links, references.links));
    const html = Parser.parse(lexer.lex(markEmphasis(source)), parser.defaults);
    // Marks that the parser did not read are in code or split by a cell or an item.
    fragment = DOMPurify.sanitize(html.replaceAll(STRONG_OPEN, "**").replaceAll(STRONG_CLOSE, "**"), CLEAN);
    if (!mayGrow) references.add(links, notes);
  } catch {
    return { fragment: renderPlain(source), missing }; // the parser's stack overflowed
  }
  completeFragment(fragment);
  return { fragment, missing };
}
