// DOM of a formula. KaTeX and its style sheet load with the first formula; until then, and if KaTeX refuses it, the TeX is
// shown as text. KaTeX sets styles through the DOM, which the content security policy allows.
import { h } from "./dom.js";
import { whenIdle } from "./idle.js";

const OPTIONS = /** @type {const} */ ({
  throwOnError: true,
  trust: false,
  strict: "ignore",
  maxSize: 20,
  maxExpand: 500,
  output: "htmlAndMathml",
});
const MAX_CACHED = 300;

let katex = /** @type {typeof import("katex").default | null} */ (null); // loaded lazily, shared by all formulas
let loading = /** @type {Promise<void> | null} */ (null);
const cache = /** @type {Map<string, Node[]>} */ (new Map()); // a growing block is drawn repeatedly

/** @param {string} tex @param {boolean} display @returns {HTMLElement} */
export function formula(tex, display) {
  const node = h("span", { class: display ? "math display" : "math", "data-tex": tex });
  if (katex) return draw(node);
  node.classList.add("pending");
  node.textContent = tex;
  // The TeX stays as text, and the next formula tries again
  loading ??= load().then(drawPending, () => void (loading = null));
  return node;
}

async function load() {
  const style = h("link", { rel: "stylesheet", href: new URL("../vendor/katex/katex.min.css", import.meta.url).href });
  const styled = new Promise((resolve, reject) => {
    style.onload = resolve;
    style.onerror = () => reject(new Error("the style sheet for formulas did not load"));
  });
  document.head.append(style);
  await Promise.all([styled, import("../vendor/katex/katex.min.js")]);
  katex = /** @type {{ katex: typeof import("katex").default }} */ (/** @type {unknown} */ (globalThis)).katex;
}

/** Draws the formulas that have waited while idle, newest first: all at once would block the page. */
function drawPending() {
  const pending = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".math.pending"))];
  whenIdle(() => {
    const node = pending.pop();
    node?.classList.remove("pending");
    if (node) draw(node);
    return pending.length > 0;
  });
}

/** @param {HTMLElement} node */
function draw(node) {
  const tex = node.dataset.tex ?? "";
  const key = `${node.className} ${tex}`;
  let nodes = cache.get(key);
  if (!nodes) {
    if (cache.size > MAX_CACHED) cache.clear();
    cache.set(key, (nodes = render(tex, node.classList.contains("display"))));
  }
  node.replaceChildren(...nodes.map((one) => one.cloneNode(true)));
  return node;
}

/** @param {string} tex @param {boolean} displayMode */
function render(tex, displayMode) {
  const root = h("span");
  try {
    katex?.render(tex, root, { ...OPTIONS, displayMode });
  } catch {
    root.textContent = tex; // not supported by KaTeX
  }
  return [...root.childNodes];
}
