// Hits of a search in an opened message: scrolled to, and marked for a moment.

const MARK_MS = 4000;
const MAX_MARKS = 500;
const SETTLE_FRAMES = 5; // in which messages that come into view take their real height

let unmark = () => {};

/**
 * Scrolls to the first hit and marks all of them; the whole message, if the browser cannot mark text or no hit is shown.
 * @param {HTMLElement} message @param {RegExp} pattern @param {HTMLElement} scroller
 */
export function showHits(message, pattern, scroller) {
  const ranges = rangesOf(message, pattern);
  const first = ranges.find((range) => range.getClientRects().length);
  unmark();
  if (first && CSS.highlights) CSS.highlights.set("hit", new Highlight(...ranges));
  else message.dataset.hit = "";
  const timer = setTimeout(() => unmark(), MARK_MS);
  unmark = () => {
    clearTimeout(timer);
    CSS.highlights?.delete("hit");
    delete message.dataset.hit;
  };
  center(first ?? message, scroller, SETTLE_FRAMES);
}

/** @param {HTMLElement} message @param {RegExp} pattern */
function rangesOf(message, pattern) {
  const ranges = [];
  for (const part of message.querySelectorAll(".body, .bubble, .call")) {
    const texts = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const node = /** @type {Text} */ (texts.currentNode);
      for (const { index, 0: hit } of node.data.matchAll(pattern)) {
        if (ranges.length === MAX_MARKS) return ranges;
        const range = new Range();
        range.setStart(node, index);
        range.setEnd(node, index + hit.length);
        ranges.push(range);
      }
    }
  }
  return ranges;
}

/** @param {Range | Element} place @param {HTMLElement} scroller @param {number} frames */
function center(place, scroller, frames) {
  const { top, height } = place.getBoundingClientRect();
  const view = scroller.getBoundingClientRect();
  scroller.scrollTop += top - view.top - Math.max(0, view.height - height) / 2;
  if (frames) requestAnimationFrame(() => center(place, scroller, frames - 1));
}
