// Transient messages: the screen reader's status line, toasts, and the confirmation of a copy.
import { byId, h, icon } from "./dom.js";

/** Announces a change of state to screen readers, never single tokens. @param {string} text */
export function setStatus(text) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
}

const MAX_ANNOUNCED_CHARACTERS = 6000; // characters

/** Announces an answer to screen readers, block by block. @param {string[]} blocks */
export function announce(blocks) {
  let left = MAX_ANNOUNCED_CHARACTERS;
  const read = blocks.filter((block) => (left -= block.length) > 0);
  if (read.length < blocks.length) read.push("The rest of the answer is in the conversation.");
  byId("spoken").replaceChildren(...read.map((block) => h("p", {}, block)));
}

/**
 * @param {string} text
 * @param {{ action?: string, run?: () => void, ms?: number }} [options]
 */
export function toast(text, { action, run, ms = 6000 } = {}) {
  const node = h("div", { class: "toast" }, h("span", {}, text));
  const close = () => node.remove();
  if (action) node.append(h("button", { type: "button", onclick: () => (close(), run?.()) }, action));
  for (const shown of byId("toasts").children) if (shown.firstChild?.textContent === text) shown.remove();
  byId("toasts").append(node);
  while (byId("toasts").children.length > 3) byId("toasts").firstElementChild?.remove();
  setTimeout(close, ms);
  setStatus(text);
}

/**
 * @param {string} text
 * @param {HTMLElement} button the pressed button: for a moment its icon is a tick, and its label, if any, "Copied"
 */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    if (!copyBySelection(text)) return toast("This browser does not let the page copy.");
  }
  setStatus("Copied");
  if ("copied" in button.dataset) return;
  const before = [...button.childNodes];
  button.dataset.copied = "";
  button.replaceChildren(icon("check"), ...(button.textContent ? [h("span", {}, "Copied")] : []));
  setTimeout(() => {
    delete button.dataset.copied;
    button.replaceChildren(...before);
  }, 1600);
}

/**
 * Copies without the clipboard API, which exists on secure origins only; a server in a local network often uses plain http.
 * @param {string} text
 */
function copyBySelection(text) {
  const area = h("textarea", { class: "sr-only", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
