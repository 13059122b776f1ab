// Owns what the page says in passing: the screen reader's status line, toasts, and the word "Copied".
import { byId, h } from "./dom.js";

/** Told politely to a screen reader; never a token, only a change of state. @param {string} text */
export function say(text) {
  const status = byId("status");
  if (status && status.textContent !== text) status.textContent = text;
}

/**
 * @param {string} text
 * @param {{ action?: string, run?: () => void, ms?: number }} [options]
 */
export function toast(text, { action, run, ms = 6000 } = {}) {
  const node = h("div", { class: "toast" }, h("span", {}, text));
  const close = () => node.remove();
  if (action) node.append(h("button", { type: "button", onclick: () => (close(), run?.()) }, action));
  byId("toasts").append(node);
  while (byId("toasts").children.length > 3) byId("toasts").firstElementChild.remove();
  setTimeout(close, ms);
  say(text);
}

/** @param {string} text @param {HTMLElement} [label] shows "Copied" for a moment */
export async function copy(text, label) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    if (!copyByHand(text)) return toast("This browser does not let the page copy.");
  }
  say("Copied");
  if (!label) return toast("Copied", { ms: 1800 });
  const before = label.textContent;
  if (before === "Copied") return;
  label.textContent = "Copied";
  setTimeout(() => (label.textContent = before), 1600);
}

/** The clipboard interface exists on secure origins only; a server in a local network is often plain http. */
function copyByHand(text) {
  const area = h("textarea", { class: "sr-only", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
