// Frame around code: language, copy button, and colours once the block is closed. The highlighter loads on first use.
import { h, icon } from "./dom.js";
import { copy } from "./notices.js";
import { offerPreview } from "./preview.js";

const MAX_HIGHLIGHTED_CHARACTERS = 60_000;

/** @param {string} info @param {string} text @param {string} [title] shown instead of the language @returns {HTMLElement} */
export function codeFrame(info, text, title = "") {
  const lang = (info.split(/[\s,{]/)[0] ?? "").slice(0, 24);
  const code = h("code", {}, text);
  const button = h("button", { class: "code-copy", type: "button" }, icon("copy"), h("span", {}, "Copy"));
  button.addEventListener("click", () => copy(code.textContent ?? "", button));
  return h(
    "div",
    { class: "code", "data-lang": lang },
    h("div", { class: "code-head" }, h("span", {}, title || lang || "text"), button),
    h("pre", { tabindex: "0", "aria-label": title || (lang ? `Code, ${lang}` : "Code"), role: "group" }, code),
  );
}

/**
 * Appends the new part of the code, so that a selection inside it is kept.
 * @param {HTMLElement} frame @param {string} text
 */
export function growCode(frame, text) {
  const code = /** @type {HTMLElement} */ (frame.querySelector("code"));
  const node = /** @type {Text | null} */ (code.firstChild);
  if (node && code.childNodes.length === 1 && text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else code.textContent = text;
  // An overlong line would make a very wide scroller
  if (text.length > 8000) frame.classList.toggle("wrapped", /[^\n]{8000}/.test(text));
}

// Loaded lazily, shared by all code blocks
let highlighter = /** @type {Promise<typeof import("../vendor/highlight/highlight.min.js")> | null} */ (null);

/** Highlights a closed block, and offers its preview. @param {HTMLElement} frame */
export async function highlight(frame) {
  const code = /** @type {HTMLElement} */ (frame.querySelector("code"));
  const text = code.textContent ?? "";
  const lang = frame.dataset.lang ?? "";
  offerPreview(frame);
  if (!lang || text.length > MAX_HIGHLIGHTED_CHARACTERS) return;
  try {
    highlighter ??= import("../vendor/highlight/highlight.min.js");
    const hljs = (await highlighter).default;
    if (!hljs.getLanguage(lang)) return;
    const tree = new DOMParser().parseFromString(
      hljs.highlight(text, { language: lang, ignoreIllegals: true }).value,
      "text/html",
    );
    if (code.textContent === text) code.replaceChildren(...onlySpans(tree.body));
  } catch {
    highlighter = null; // optional: the code stays uncoloured
  }
}

/**
 * Copies only text and spans with hljs classes from the highlighter's output.
 * @param {Node} parent @returns {(Node | string)[]}
 */
function onlySpans(parent) {
  return [...parent.childNodes].map((node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.textContent ?? "";
    const span = h("span", {
      class: [.../** @type {Element} */ (node).classList].filter((name) => /^[\w-]+$/.test(name)).join(" "),
    });
    span.append(...onlySpans(node));
    return span;
  });
}
