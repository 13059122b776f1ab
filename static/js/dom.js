// Factories for HTML and SVG elements. Text becomes text nodes only; no function accepts HTML.
import { ICONS } from "./env.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * h("button", { class: "x", type: "button", onclick: fn }, "label", child)
 * @param {string} tag
 * @param {Record<string, any>} [props] attributes; `on…` are listeners; null and false are omitted
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {any}
 */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  setProps(node, props);
  for (const child of children) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

/** Creates an SVG element in the same way. @returns {any} */
export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  setProps(node, props);
  node.append(...children);
  return node;
}

function setProps(node, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Creates an icon from the sprite. @param {string} name */
export const icon = (name) =>
  svg("svg", { class: "icon", "aria-hidden": "true", focusable: "false" }, svg("use", { href: `${ICONS}#${name}` }));

/** @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

/** Creates a round button with an icon and an accessible name. */
export const iconButton = (name, label, onclick, extra = {}) =>
  h(
    "button",
    { class: "icon-button small", type: "button", "aria-label": label, title: label, onclick, ...extra },
    icon(name),
  );
