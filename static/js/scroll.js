// Scroll position of the column: follows new text until the user scrolls up, and then stays.

const NEAR_END_PX = 40;
const SETTLE_FRAMES = 3; // after which no further message comes into view
const UPWARD_KEYS = new Set(["ArrowUp", "PageUp", "Home"]);

/** @param {EventTarget | null} target */
const isTextField = (target) => target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement;

export class AutoScroll {
  #following = true;
  #hasMessages = true; // there are messages, so a button to the latest one is useful
  #top = 0;
  #height = 0;
  #frame = 0;

  /** @param {HTMLElement} scroller @param {HTMLElement} content @param {HTMLElement} jump */
  constructor(scroller, content, jump) {
    this.scroller = scroller;
    this.jump = jump;
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    scroller.addEventListener("wheel", (event) => event.deltaY < 0 && this.release(), { passive: true });
    document.addEventListener(
      "keydown",
      ({ key, target }) => UPWARD_KEYS.has(key) && this.#isScrolledFrom(target) && this.release(),
    );
    new ResizeObserver(() => this.#resized()).observe(content);
    new ResizeObserver(() => this.#resized()).observe(scroller);
    jump.addEventListener("click", () => this.toEnd());
  }

  /**
   * Shows another conversation: at its end, or without messages at the top of the page.
   * @param {boolean} hasMessages
   */
  open(hasMessages) {
    if (hasMessages) return this.toEnd();
    this.#following = this.#hasMessages = false;
    this.scroller.scrollTop = 0;
    this.#show();
  }

  toEnd() {
    this.#following = this.#hasMessages = true;
    this.#scrollToEnd();
    this.#show();
  }

  get #gap() {
    return this.scroller.scrollHeight - this.scroller.clientHeight - this.scroller.scrollTop;
  }

  /**
   * Whether keys scroll the column while `target` has the focus; menus and text fields handle keys themselves.
   * @param {EventTarget | null} target
   */
  #isScrolledFrom(target) {
    return (
      target === document.body || (target instanceof Element && this.scroller.contains(target) && !isTextField(target))
    );
  }

  #scrollToEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#remember();
    this.#correct(SETTLE_FRAMES);
  }

  /**
   * Corrects the position: messages are laid out only when they come into view, and may be taller than estimated.
   * @param {number} frames
   */
  #correct(frames) {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => {
      if (!this.#following) return;
      if (this.#gap > 1) this.#scrollToEnd();
      else if (frames) this.#correct(frames - 1);
    });
  }

  #resized() {
    if (this.#following) this.#scrollToEnd();
    this.#show();
  }

  /** Ends following, since the reader goes to another place. */
  release() {
    if (this.#gap > 0 || this.scroller.scrollTop > 0) this.#following = false;
  }

  #scrolled() {
    // A column that changes its height moves by itself, and an event may report the scroll of `#scrollToEnd`.
    const moved = this.scroller.scrollTop - this.#top;
    const isUp = moved < -1 && this.scroller.scrollHeight === this.#height;
    this.#remember();
    // Growth also changes the gap: only scrolling up ends following, and only scrolling to the very end resumes it.
    if (isUp) this.#following = false;
    else if (moved > 0 && this.#gap < 4) this.#following = true;
    this.#show();
  }

  #remember() {
    this.#top = this.scroller.scrollTop;
    this.#height = this.scroller.scrollHeight;
  }

  #show() {
    this.jump.hidden = !this.#hasMessages || this.#following || this.#gap < NEAR_END_PX;
  }
}
