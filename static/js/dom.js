// Factories for HTML and SVG elements. Text becomes text nodes only; no function accepts HTML.
import { ICONS } from "./env.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * Attributes of an element; `on…` are listeners; null, undefined and false are omitted.
 * @typedef {Record<string, string | number | boolean | null | undefined | ((event: Event) => unknown)>} Props
 */

/**
 * h("button", { class: "x", type: "button", onclick: fn }, "label", child)
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props} [props]
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  setProps(node, props);
  for (const child of children) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

/**
 * Creates an SVG element in the same way.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props} [props]
 * @param {...(Node | string)} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  setProps(node, props);
  node.append(...children);
  return node;
}

/** @param {Element} node @param {Props} props */
function setProps(node, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Creates an icon from the sprite. @param {string} name */
export const icon = (name) =>
  svg("svg", { class: "icon", "aria-hidden": "true", focusable: "false" }, svg("use", { href: `${ICONS}#${name}` }));

/**
 * Returns the element with an id, which the page's template contains.
 * @template {Element} [Type=HTMLElement]
 * @param {string} id
 * @param {new () => Type} [type]
 * @returns {Type}
 */
export function byId(id, type = /** @type {new () => Type} */ (/** @type {unknown} */ (HTMLElement))) {
  const node = document.getElementById(id);
  if (!(node instanceof type)) throw new TypeError(`this page has no ${type.name} with the id ${id}`);
  return node;
}
