// Timeline under a finished answer: a bar of its phases and, on demand, each interval with its reason.
import { h, icon } from "./dom.js";
import { because, spent } from "./labels.js";

const SHORTEST = 0.5; // ms; shorter phases are left out

export class AccountView {
  #filled = ""; // stream of the listed intervals

  /** @param {(stream: string) => Promise<{ choices: { intervals: any[] }[] }>} load */
  constructor(load) {
    this.load = load;
    this.list = h("ol");
    this.node = h("details", { class: "account", hidden: true, ontoggle: () => this.node.open && this.#explain() });
  }

  /** @param {import("./store.js").Message} message */
  show(message) {
    this.message = message;
    const totals = Object.entries(message.usage?.time_ms ?? {});
    this.node.hidden = message.state === "streaming" || !totals.length;
    if (this.node.hidden) return;
    const bar = h("span", { class: "account-bar", "aria-hidden": "true" });
    for (const [phase, ms] of totals) {
      const part = h("span", { "data-phase": phase });
      part.style.setProperty("flex-grow", String(ms));
      bar.append(part);
    }
    const words = totals.filter(([, ms]) => ms >= SHORTEST).map(([phase, ms]) => spent(phase, ms)).join(", ");
    const label = h("span", { class: "account-label" }, icon("chevron"), "Where the time went");
    this.node.replaceChildren(h("summary", { "aria-label": `Where the time went: ${words}`, title: words }, label, bar), this.list);
  }

  async #explain() {
    if (this.#filled === this.message.stream) return;
    this.#filled = this.message.stream;
    const line = (phase, words, why) => h("li", {}, h("i", { "data-phase": phase }), words, why && h("span", { class: "account-why" }, `, ${why}`));
    try {
      const { choices } = await this.load(this.message.stream);
      const worth = choices[0].intervals.filter(({ ms }) => ms >= SHORTEST);
      this.list.replaceChildren(...worth.map((interval) => line(interval.phase, spent(interval.phase, interval.ms), because(interval))));
    } catch {
      // The server no longer has the timeline or is unreachable; the totals from the answer still hold.
      this.list.replaceChildren(...Object.entries(this.message.usage.time_ms).map(([phase, ms]) => line(phase, spent(phase, ms), "")));
    }
  }
}
