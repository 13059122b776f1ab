// Preview of HTML and SVG code in a frame of its own origin, without network, storage or access to the page.
import { h } from "./dom.js";
import { url } from "./env.js";

const LANGUAGES = new Set(["html", "svg"]);

/** Adds a button to the head of a closed code block that can be previewed. @param {HTMLElement} frame */
export function offerPreview(frame) {
  if (!LANGUAGES.has((frame.dataset.lang ?? "").toLowerCase()) || frame.querySelector(".code-preview")) return;
  const button = h("button", { class: "code-copy code-preview", type: "button", "aria-pressed": "false" }, "Preview");
  button.addEventListener("click", () => {
    const isShown = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!isShown));
    if (isShown) frame.querySelector("iframe")?.remove();
    else frame.append(previewOf(frame.querySelector("code")?.textContent ?? ""));
  });
  frame.querySelector(".code-copy")?.before(button);
}

/** @param {string} text */
function previewOf(text) {
  const view = h("iframe", { class: "preview", title: "Preview", sandbox: "allow-scripts", src: url("/preview") });
  const give = (/** @type {MessageEvent} */ { source, data }) => {
    if (source !== view.contentWindow || data !== "ready") return;
    removeEventListener("message", give);
    view.contentWindow?.postMessage(text, "*");
  };
  addEventListener("message", give);
  return view;
}
