// Line under an answer that shows its state and the reason for a wait.
import { h, svg } from "./dom.js";
import { describe, reasoningLabel } from "./labels.js";

/** @import { Message, MessageActions, Status } from "./types.js" */

const ESTIMATE_INTERVAL_MS = 1500;

export class WaitLine {
  #ticking = 0;
  #asked = 0;

  /** @param {MessageActions} actions @param {() => Message} message */
  constructor(actions, message) {
    this.actions = actions;
    this.message = message;
    this.node = h("div", { class: "wait", hidden: true });
    this.head = h("b");
    this.why = h("span", { class: "wait-why" });
  }

  get isShown() {
    return !this.node.hidden;
  }

  /** @param {Status} status */
  status(status) {
    const { kind, head, why } = describe(status);
    this.#show(kind, head, why);
    if (kind === "queued" && status.position) this.#addEstimate(head, why);
  }

  /** Adds the server's estimate to a place in line. @param {string} head @param {string} why */
  async #addEstimate(head, why) {
    if (Date.now() - this.#asked < ESTIMATE_INTERVAL_MS) return;
    this.#asked = Date.now();
    const { wait_ms: ms } = await this.actions.timeline(this.message().stream ?? "").catch(() => ({ wait_ms: 0 }));
    const isCurrent = this.isShown && this.node.dataset.kind === "queued" && this.head.textContent === head;
    if (ms && isCurrent) this.#show("queued", head, `${why}; about ${Math.max(1, Math.round(ms / 1000))} s`);
  }

  /** @param {Message} message */
  thinking(message) {
    if (this.isShown && this.node.dataset.kind === "thinking") return;
    this.#tick(() => (this.#show("thinking", reasoningLabel(message, Date.now()), ""), 1000));
  }

  reconnecting() {
    this.#show("reconnecting", "Reconnecting", "the text so far is kept");
  }

  offline() {
    this.#show("offline", "The server cannot be reached", "Your message is sent as soon as it is back", true);
  }

  /** @param {{ message: string }} error @param {number} at */
  retrying(error, at) {
    this.#tick(() => {
      const left = Math.max(0, Math.ceil((at - Date.now()) / 1000));
      this.#show("retry", left ? `Trying again in ${left} s` : "Trying again", error.message.replace(/\.$/, ""), true);
      return left && 250;
    });
  }

  hide() {
    clearTimeout(this.#ticking);
    this.node.hidden = true;
  }

  /** @param {() => number} draw returns ms until the next draw, 0 for never */
  #tick(draw) {
    const again = draw();
    if (again) this.#ticking = window.setTimeout(() => this.#tick(draw), again);
  }

  /** @param {string} kind @param {string} head @param {string} why @param {boolean} [retry] */
  #show(kind, head, why, retry = false) {
    clearTimeout(this.#ticking);
    if (this.node.dataset.kind !== kind || this.node.hidden) {
      this.node.dataset.kind = kind;
      this.node.replaceChildren(waitRing(), h("span", { class: "wait-text" }, this.head, this.why));
      if (retry)
        this.node.append(
          h(
            "button",
            { class: "button small", type: "button", onclick: () => this.actions.retryNow(this.message().id) },
            "Try now",
          ),
        );
    }
    this.node.hidden = false;
    this.head.textContent = head;
    this.why.textContent = why && `${retry ? ". " : ", "}${why}`;
  }
}

/** Creates a small ring of the brand: it turns while an answer waits and stops while it is paused. */
function waitRing() {
  const dots = Array.from({ length: 8 }, (_, i) => {
    const angle = (i / 8) * 2 * Math.PI - Math.PI / 2;
    return svg("circle", {
      cx: 12 + 8.2 * Math.cos(angle),
      cy: 12 + 8.2 * Math.sin(angle),
      r: 1.9,
      class: i ? null : "lit",
    });
  });
  return svg("svg", { class: "wait-ring", viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("g", {}, ...dots));
}
