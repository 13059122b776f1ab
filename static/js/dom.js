// Owns the two ways this front end makes elements. Text goes in as text nodes only; nothing here takes HTML.
import { ICONS } from "./env.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * h("button", { class: "x", type: "button", onclick: fn }, "label", child)
 * @param {string} tag
 * @param {Record<string, any>} [props] attributes; `on…` are listeners; null and false are left out
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {any}
 */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  setProps(node, props);
  for (const child of children) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

/** The same for SVG. @returns {any} */
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

/** One icon of the sprite. @param {string} name */
export const icon = (name) =>
  svg("svg", { class: "icon", "aria-hidden": "true", focusable: "false" }, svg("use", { href: `${ICONS}#${name}` }));

/** @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

/** A round button with an icon and a name for those who cannot see it. */
export const iconButton = (name, label, onclick, extra = {}) =>
  h("button", { class: "icon-button small", type: "button", "aria-label": label, title: label, onclick, ...extra }, icon(name));
