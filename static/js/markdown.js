// Conversion of Markdown to safe DOM. Model output is untrusted: raw HTML is shown as text, nothing is loaded, only http(s)
// and mailto links work, and text that could overload the parser is shown plain. DOMPurify is the second line of defence.
import DOMPurify from "../vendor/dompurify/purify.es.mjs";
import { Marked } from "../vendor/marked/marked.esm.js";
import { codeFrame } from "./code.js";
import { h } from "./dom.js";
import { formula } from "./formula.js";
import { formulaAt } from "./math.js";

const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;
const TAGS = "p br strong em del code pre a ul ol li blockquote hr table thead tbody tr th td h1 h2 h3 h4 h5 h6";
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
  breaks: false,
  async: false,
  tokenizer: {
    // Without a token the text is escaped like any other. `def` would remove lines and resolve across blocks.
    html: () => undefined,
    tag: () => undefined,
    def: () => undefined,
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

let isGrowing = false; // whether the text being parsed may still grow

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
        if (found === "open") return isGrowing ? plainToken(source) : plainToken(source.slice(0, 2));
        if (!found) return /^\\[[(]/.test(source) ? plainToken(source.slice(0, 2)) : undefined;
        return mathToken(found);
      },
      renderer: ({ tex, display }) => codeOf(tex, display),
    },
  ],
});

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
 * Renders one block of Markdown.
 * @param {string} source @param {boolean} [mayGrow] the block may be unfinished @returns {DocumentFragment}
 */
export function renderMarkdown(source, mayGrow = false) {
  if (isTooComplex(source)) return renderPlain(source);
  let fragment;
  isGrowing = mayGrow;
  try {
    fragment = DOMPurify.sanitize(/** @type {string} */ (parser.parse(source)), CLEAN);
  } catch {
    return renderPlain(source); // the parser's stack overflowed: show the text plain
  }
  completeFragment(fragment);
  return fragment;
}

/**
 * Completes a fragment: links open in a new tab without a referrer, lists and tables follow the direction of their text,
 * formulas are drawn, tables and code get their frames.
 * @param {DocumentFragment} fragment
 */
function completeFragment(fragment) {
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const code of fragment.querySelectorAll("code.math")) {
    code.replaceWith(formula(code.textContent ?? "", code.classList.contains("display")));
  }
  for (const list of fragment.querySelectorAll("ul, ol, table, blockquote")) list.setAttribute("dir", "auto");
  for (const table of fragment.querySelectorAll("table")) {
    const frame = h("div", { class: "table-frame", tabindex: "0", role: "group", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const pre of fragment.querySelectorAll("pre")) {
    const lang = /^language-(.*)$/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "";
    pre.replaceWith(codeFrame(lang, (pre.textContent ?? "").replace(/\n$/, "")));
  }
  for (const marked of fragment.querySelectorAll("[class]:not(.table-frame, .code, .code *, .math, .math *)"))
    marked.removeAttribute("class");
}
