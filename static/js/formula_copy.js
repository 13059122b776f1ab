// Copying of formulas as TeX, as KaTeX's copy-tex extension does it: without this, a copied formula has its text twice, from
// the drawn symbols and from MathML.
import { h } from "./dom.js";

export function setUpFormulaCopy() {
  document.addEventListener("copy", (event) => {
    const selection = getSelection();
    if (!selection || selection.isCollapsed || !event.clipboardData) return;
    const range = wholeFormulas(selection.getRangeAt(0));
    const copied = range.cloneContents();
    if (!copied.querySelector(".math")) return;
    for (const math of copied.querySelectorAll(".math")) math.replaceWith(source(/** @type {HTMLElement} */ (math)));
    const { text, html } = inBothForms(copied);
    event.clipboardData.setData("text/plain", text);
    event.clipboardData.setData("text/html", html);
    event.preventDefault();
  });
}

/** Extends a range so that it holds no part of a formula. @param {Range} selected */
function wholeFormulas(selected) {
  const range = selected.cloneRange();
  const first = formulaOf(range.startContainer);
  const last = formulaOf(range.endContainer);
  if (first) range.setStartBefore(first);
  if (last) range.setEndAfter(last);
  return range;
}

/** @param {Node} node */
const formulaOf = (node) => (node instanceof Element ? node : node.parentElement)?.closest(".math");

/** @param {HTMLElement} math */
function source(math) {
  const mark = math.classList.contains("display") ? "$$" : "$";
  return mark + (math.dataset.tex ?? "") + mark;
}

/**
 * Returns the text of copied nodes with its line ends, which only a rendered element has, and their HTML.
 * @param {DocumentFragment} copied
 */
function inBothForms(copied) {
  const shown = h("div", { class: "copied", "aria-hidden": "true" });
  shown.append(copied);
  document.body.append(shown);
  const forms = { text: shown.innerText, html: shown.innerHTML };
  shown.remove();
  return forms;
}
