// Completion of sanitised DOM: links, directions, formulas, frames of code and tables, alerts and footnotes.
import { codeFrame } from "./code.js";
import { h } from "./dom.js";
import { formula } from "./formula.js";

const ALERT = /^\[!(note|tip|important|warning|caution)\](?:\s+|$)/i;
const ALERT_TITLES = /** @type {Record<string, string>} */ ({
  note: "Note",
  tip: "Tip",
  important: "Important",
  warning: "Warning",
  caution: "Caution",
});

const OWN_CLASSES =
  ".table-frame, .code, .code *, .math, .math *, .footnote, .footnote-use, .footnote-jump, .alert, .alert-title, .task";

/**
 * Completes a fragment: links open in a new tab without a referrer, lists and tables follow the direction of their text,
 * formulas are drawn, tables and code get their frames.
 * @param {DocumentFragment} fragment
 */
export function completeFragment(fragment) {
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
  for (const item of fragment.querySelectorAll("li")) item.classList.toggle("task", isTask(item));
  completeFootnotes(fragment);
  for (const quote of fragment.querySelectorAll("blockquote")) completeAlert(quote);
  for (const marked of fragment.querySelectorAll(`[class]:not(${OWN_CLASSES})`)) marked.removeAttribute("class");
}

/** Whether an item begins with a box of markdown.js, which takes the place of its bullet. @param {Element} item */
const isTask = ({ firstChild }) =>
  /^[☐☑] /.test((firstChild instanceof Text ? firstChild : firstChild?.firstChild)?.nodeValue ?? "");

/** Numbers in the text lead to their footnotes, and back. @param {DocumentFragment} fragment */
function completeFootnotes(fragment) {
  for (const sup of fragment.querySelectorAll("sup.footnote-use, div.footnote > sup:first-child")) {
    const label = sup.textContent ?? "";
    const isUse = sup.classList.contains("footnote-use");
    const name = isUse ? `Footnote ${label}` : `Back to footnote mark ${label}`;
    const button = h("button", { class: "footnote-jump", type: "button", "aria-label": name }, label);
    button.addEventListener("click", () => jumpTo(button, isUse ? ".footnote > sup" : ".footnote-use"));
    sup.replaceChildren(button);
  }
}

/** Moves to the first footnote, or mark in the text, with the same label. @param {Element} from @param {string} parents */
function jumpTo(from, parents) {
  const places = from.closest(".prose")?.querySelectorAll(`:is(${parents}) > .footnote-jump`) ?? [];
  const place = [...places].find(({ textContent }) => textContent === from.textContent);
  if (!(place instanceof HTMLElement)) return;
  place.scrollIntoView({ block: "center" });
  place.focus({ preventScroll: true });
}

/** Replaces a quotation that begins with a line such as [!NOTE] by an alert. @param {Element} quote */
function completeAlert(quote) {
  const paragraph = quote.firstElementChild;
  const text = paragraph?.localName === "p" ? paragraph.firstChild : null;
  const [mark, kind] = (text instanceof Text && ALERT.exec(text.data)) || [];
  if (!paragraph || !(text instanceof Text) || !mark || !kind) return;
  text.data = text.data.slice(mark.length);
  if (!text.data) {
    if (text.nextSibling?.nodeName === "BR") text.nextSibling.remove();
    text.remove();
  }
  if (!paragraph.hasChildNodes()) paragraph.remove();
  const name = kind.toLowerCase();
  const title = h("p", { class: "alert-title" }, ALERT_TITLES[name]);
  const alert = h("div", { class: "alert", role: "note", dir: "auto", "data-kind": name }, title);
  alert.append(...quote.childNodes);
  quote.replaceWith(alert);
}
