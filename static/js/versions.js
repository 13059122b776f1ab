// Switch between the versions of a message: its siblings in the tree.
import { h, iconButton } from "./dom.js";

/** @import { Message } from "./types.js" */

export class VersionSwitch {
  #siblings = /** @type {Message[]} */ ([]);
  #at = 0;
  #buttons = /** @type {HTMLButtonElement[]} */ ([]);

  /** @param {(id: string, step: number) => void} choose called with the chosen version and the direction, -1 or 1 */
  constructor(choose) {
    this.choose = choose;
    this.count = h("span");
    this.node = h("span", { class: "versions", role: "group", hidden: true });
    this.node.addEventListener("keydown", ({ key }) =>
      this.#go(key === "ArrowLeft" ? -1 : key === "ArrowRight" ? 1 : 0),
    );
  }

  /** @param {Message[]} siblings the oldest first @param {Message} message */
  show(siblings, message) {
    const isAlone = siblings.length < 2;
    if (isAlone && this.node.hidden) return;
    this.#siblings = siblings;
    this.#at = siblings.indexOf(message);
    this.node.hidden = isAlone;
    if (!this.#buttons.length) this.#build();
    this.count.textContent = `${this.#at + 1}/${siblings.length}`;
    this.node.setAttribute("aria-label", `Version ${this.#at + 1} of ${siblings.length}`);
    this.#buttons[0].disabled = this.#at === 0;
    this.#buttons[1].disabled = this.#at === siblings.length - 1;
  }

  /** Creates the buttons, which most messages do not need. */
  #build() {
    this.#buttons = [
      iconButton("chevron", "Earlier version", () => this.#go(-1), { class: "icon-button small back" }),
      iconButton("chevron", "Later version", () => this.#go(1)),
    ];
    this.node.append(this.#buttons[0], this.count, this.#buttons[1]);
  }

  /** Moves the focus to the button that was pressed in the version before. @param {number} step */
  focus(step) {
    const [pressed, other] = step < 0 ? this.#buttons : [...this.#buttons].reverse();
    (pressed?.disabled ? other : pressed)?.focus();
  }

  /** @param {number} step */
  #go(step) {
    const to = this.#siblings[this.#at + step];
    if (step && to) this.choose(to.id, step);
  }
}
