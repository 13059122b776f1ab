// Preview of HTML, SVG and Mermaid code in a frame of its own origin, without network, storage or access to the page.
import { h } from "./dom.js";
import { url } from "./env.js";

/** Documents that show a text of a language. */
const DOCUMENTS = new Map([
  ["html", "/preview"],
  ["svg", "/preview"],
  ["mermaid", "/preview/mermaid"],
]);
const MAX_HEIGHT = 640; // px
const MAX_DRAWING_MS = 10_000; // has an effect where the browser gives the frame a process of its own

/** Adds a button to the head of a closed code block that can be previewed. @param {HTMLElement} frame */
export function offerPreview(frame) {
  const path = DOCUMENTS.get((frame.dataset.lang ?? "").toLowerCase());
  if (!path || frame.querySelector(".code-preview")) return;
  const button = h("button", { class: "code-copy code-preview", type: "button", "aria-pressed": "false" }, "Preview");
  button.addEventListener("click", () => {
    const isShown = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!isShown));
    if (isShown) frame.querySelector(".preview")?.remove();
    else frame.append(previewOf(frame.querySelector("code")?.textContent ?? "", path));
  });
  frame.querySelector(".code-copy")?.before(button);
}

/** @param {string} text @param {string} path */
function previewOf(text, path) {
  const view = h("iframe", { title: "Preview", sandbox: "allow-scripts", src: url(path) });
  view.className = path === DOCUMENTS.get("mermaid") ? "preview diagram" : "preview";
  let timer = 0;
  const answer = (/** @type {MessageEvent} */ { source, data }) => {
    if (source !== view.contentWindow) return;
    if (data !== "ready") {
      const { height } = Object(data); // of what was drawn; a document of a model need not have one
      if (height > 0) view.style.height = `${Math.min(height, MAX_HEIGHT)}px`;
      return end();
    }
    view.contentWindow?.postMessage({ text, isDark: isDark() }, "*");
    timer = setTimeout(() => {
      end();
      view.replaceWith(h("p", { class: "preview slow" }, "The preview took more than ten seconds, and was stopped."));
    }, MAX_DRAWING_MS);
  };
  const end = () => {
    clearTimeout(timer);
    removeEventListener("message", answer);
  };
  addEventListener("message", answer);
  return view;
}

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
