// Width of the list of conversations: dragged, or moved with keys, and kept. js/theme.js applies it before the first paint.
import { writePref } from "./prefs.js";

const DEFAULT_PX = 272; // as in tokens.css
const MIN_PX = 220;
const MAX_PX = 480;
const STEP_PX = 16;

/** @param {HTMLElement} separator at the edge of the list */
export function setUpSidebarWidth(separator) {
  const { style } = document.documentElement;
  let width = DEFAULT_PX;
  const set = (/** @type {number} */ wanted) => {
    width = Math.round(Math.min(MAX_PX, Math.max(MIN_PX, wanted || DEFAULT_PX)));
    style.setProperty("--list-width", `${width}px`);
    separator.setAttribute("aria-valuenow", String(width));
  };
  const save = () => writePref("list-width", width === DEFAULT_PX ? null : width);
  separator.setAttribute("aria-valuemin", String(MIN_PX));
  separator.setAttribute("aria-valuemax", String(MAX_PX));
  set(parseFloat(style.getPropertyValue("--list-width")));
  separator.addEventListener("pointerdown", (event) => {
    separator.setPointerCapture(event.pointerId);
    event.preventDefault(); // selects no text
  });
  separator.addEventListener("pointermove", (event) => {
    if (separator.hasPointerCapture(event.pointerId)) set(event.clientX);
  });
  separator.addEventListener("lostpointercapture", save);
  separator.addEventListener("dblclick", () => (set(DEFAULT_PX), save()));
  separator.addEventListener("keydown", (event) => {
    const to = /** @type {Record<string, number>} */ ({
      ArrowLeft: width - STEP_PX,
      ArrowRight: width + STEP_PX,
      Home: MIN_PX,
      End: MAX_PX,
    })[event.key];
    if (to === undefined) return;
    event.preventDefault();
    set(to);
    save();
  });
}
