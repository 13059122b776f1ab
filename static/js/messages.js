// Owns the DOM of one message: a bubble for what a person wrote, an answer with its waiting line, trouble, tools and figures.
import { h, icon, iconButton, svg } from "./dom.js";
import { copy } from "./notices.js";
import { MarkdownStream } from "./render.js";
import { because, describe, ending, figures, spent } from "./words.js";

/**
 * @typedef {{ regenerate(id: string): void, edit(id: string, text: string): void, retryNow(id: string): void, stop(): void, askKey(): void, create(): void, account(stream: string): Promise<{ choices: { intervals: any[] }[] }> }} Actions
 * @typedef {import("./store.js").Message} Message
 */

export class UserView {
  /** @param {Message} message @param {Actions} actions */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.node = h("article", { class: "message message-user", "aria-label": "You wrote", "data-role": "user" });
    this.show();
  }

  show() {
    this.node.replaceChildren(
      h("div", { class: `bubble${this.message.content.length > 3000 ? " long" : ""}`, dir: "auto" }, this.message.content),
      h("div", { class: "tools" },
        iconButton("edit", "Edit and send again", () => this.edit()),
        iconButton("copy", "Copy message", ({ currentTarget }) => copy(this.message.content, currentTarget))));
  }

  /** Shows a newer copy of its message, if that only repeats it. @param {Message} message */
  adopt(message) {
    const same = message.id === this.message.id && message.content === this.message.content;
    if (same) this.message = message;
    return same;
  }

  edit() {
    const area = h("textarea", { "aria-label": "Edit message", rows: "1", dir: "auto" });
    area.value = this.message.content;
    const size = () => {
      area.style.setProperty("height", "auto");
      area.style.setProperty("height", `${area.scrollHeight}px`);
    };
    const cancel = () => {
      this.show();
      this.node.querySelector("button")?.focus();
    };
    const send = () => area.value.trim() && this.actions.edit(this.message.id, area.value);
    area.addEventListener("input", size);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        cancel();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
        event.preventDefault();
        send();
      }
    });
    this.node.replaceChildren(h("div", { class: "edit" }, area, h("div", { class: "edit-foot" },
      h("button", { class: "button small quiet", type: "button", onclick: cancel }, "Cancel"),
      h("button", { class: "button small primary", type: "button", onclick: send }, "Send"))));
    size();
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }
}

export class AnswerView {
  #stream = /** @type {MarkdownStream | null} */ (null);
  #ticking = 0;

  /** @param {Message} message @param {Actions} actions */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.thoughts = h("details", { class: "thoughts", hidden: true }, h("summary", {}, "Thoughts"), h("p"));
    this.body = h("div", { class: "body prose" });
    this.wait = h("div", { class: "wait", hidden: true });
    this.trouble = h("div", { class: "trouble", role: "group", "aria-label": "Problem", hidden: true });
    this.figures = h("p", { class: "figures" });
    this.tools = h("div", { class: "tools" },
      iconButton("copy", "Copy answer", ({ currentTarget }) => copy(this.message.content, currentTarget)),
      iconButton("again", "Answer again", () => this.actions.regenerate(this.message.id)),
      this.figures);
    this.account = h("details", { class: "account", hidden: true, ontoggle: () => this.account.open && this.#explain() });
    this.node = h("article", { class: "message message-answer", "aria-label": "Answer", "data-role": "assistant" },
      this.thoughts, this.body, this.wait, this.trouble, this.tools, this.account);
    this.#begin();
  }

  #begin() {
    const { message } = this;
    this.body.replaceChildren();
    this.#stream = new MarkdownStream(this.body);
    if (message.thinking) this.think(message.thinking);
    if (message.state === "streaming") {
      this.#setLive(true);
      if (message.content) this.write(message.content);
      else this.status({ state: "running" });
    } else {
      this.#stream.write(message.content);
      this.settle();
    }
  }

  /** @param {string} text */
  write(text) {
    if (!this.wait.hidden) this.#clearWait();
    this.trouble.hidden = true;
    this.#stream?.write(text);
    this.#showFigures();
  }

  /** Shows a newer copy of its message, if that only goes on from what is shown. @param {Message} message */
  adopt(message) {
    const before = this.message;
    if (message.id !== before.id || !message.content.startsWith(before.content)) return false;
    this.message = message;
    if (before.state !== "streaming") return message.state === before.state;
    if (message.content.length > before.content.length) this.write(message.content.slice(before.content.length));
    if (message.state !== "streaming") this.settle();
    return true;
  }

  /** @param {string} text */
  think(text) {
    this.thoughts.hidden = false;
    this.thoughts.lastChild.append(text);
  }

  /** Why nothing moves. @param {Parameters<typeof describe>[0]} status */
  status(status) {
    if (status.state === "running" && this.message.content) return this.#clearWait();
    const { kind, head, why } = describe(status);
    this.#showWait(kind, head, why);
  }

  reconnecting() {
    this.#showWait("reconnecting", "Reconnecting…", "the answer goes on where it was");
  }

  /** @param {{ message: string }} error @param {number} at */
  retrying(error, at) {
    const tick = () => {
      const left = Math.max(0, Math.ceil((at - Date.now()) / 1000));
      this.#showWait("retry", left ? `Trying again in ${left} s` : "Trying again", error.message.replace(/\.$/, ""), true);
      if (left) this.#ticking = window.setTimeout(tick, 250);
    };
    tick();
  }

  /** The answer ended, one way or another: what remains is text, figures and perhaps trouble. */
  settle() {
    this.#clearWait();
    this.#setLive(false);
    this.#stream?.finish();
    const { error, state } = this.message;
    this.trouble.hidden = state !== "error" || !error;
    if (state === "error" && error) this.#showTrouble(error);
    this.#showFigures();
  }

  #setLive(live) {
    this.body.classList.toggle("live", live);
    this.node.setAttribute("aria-busy", String(live));
    // An empty answer has nothing to copy, and its trouble already offers the way on.
    for (const button of this.tools.querySelectorAll("button")) button.hidden = live || (this.message.state === "error" && !this.message.content);
  }

  #showWait(kind, head, why, retry = false) {
    clearTimeout(this.#ticking);
    if (this.wait.dataset.kind !== kind || this.wait.hidden) {
      this.wait.dataset.kind = kind;
      this.wait.replaceChildren(waitRing(), h("span", { class: "wait-text" }, h("b"), h("span", { class: "wait-why" })));
      if (retry) this.wait.append(h("button", { class: "button small", type: "button", onclick: () => this.actions.retryNow(this.message.id) }, "Try now"));
    }
    this.wait.hidden = false;
    this.wait.querySelector("b").textContent = head;
    this.wait.querySelector(".wait-why").textContent = why && `${retry ? ". " : ", "}${why}`;
    this.body.classList.remove("live"); // the lamp burns only while words come
  }

  #clearWait() {
    clearTimeout(this.#ticking);
    this.wait.hidden = true;
    this.body.classList.toggle("live", this.message.state === "streaming");
  }

  #showTrouble(error) {
    // What does not fit will not fit the next time either.
    const [way, label] = error.code === "context_length_exceeded" ? [this.actions.create, "New conversation"] : [() => this.actions.regenerate(this.message.id), "Try again"];
    const retry = h("button", { class: "button small", type: "button", onclick: () => way() }, label);
    const key = error.status === 401 && h("button", { class: "button small", type: "button", onclick: () => this.actions.askKey() }, "Enter key");
    const code = [error.status || "", error.code ?? ""].filter(Boolean).join(" ");
    this.trouble.replaceChildren(icon("warn"),
      h("div", { class: "trouble-text" }, error.message, code && h("span", { class: "trouble-code" }, code)),
      h("div", { class: "trouble-tools" }, key, retry));
  }

  #showFigures() {
    const parts = figures(this.message).map((text, i) => h("span", { class: i && / tokens?$/.test(text) ? "wordy" : null }, text));
    const end = ending(this.message);
    if (end) parts.push(h("span", { class: "note" }, end));
    this.figures.replaceChildren(...parts);
    this.#showAccount();
  }

  /** The timeline under a finished answer: a bar of its phases, and on demand each interval with its reason. */
  #showAccount() {
    const totals = Object.entries(this.message.usage?.time_ms ?? {});
    this.account.hidden = this.message.state === "streaming" || !totals.length;
    if (this.account.hidden || this.account.firstChild) return;
    const bar = h("span", { class: "account-bar", "aria-hidden": "true" });
    for (const [phase, ms] of totals) {
      const part = h("span", { "data-phase": phase });
      part.style.setProperty("flex-grow", String(ms));
      bar.append(part);
    }
    const words = totals.filter(([, ms]) => ms >= 0.5).map(([phase, ms]) => spent(phase, ms)).join(", ");
    const label = h("span", { class: "account-label" }, icon("chevron"), "Where the time went");
    this.account.append(h("summary", { "aria-label": `Where the time went: ${words}`, title: words }, label, bar), h("ol"));
  }

  async #explain() {
    const list = this.account.lastChild;
    if (list.firstChild) return;
    const line = (phase, words, why) => h("li", {}, h("i", { "data-phase": phase }), words, why && h("span", { class: "account-why" }, `, ${why}`));
    try {
      const { choices } = await this.actions.account(this.message.stream);
      const worth = choices[0].intervals.filter(({ ms }) => ms >= 0.5);
      list.replaceChildren(...worth.map((interval) => line(interval.phase, spent(interval.phase, interval.ms), because(interval))));
    } catch {
      // The server has forgotten it, or is away: what the answer itself brought is still true.
      list.replaceChildren(...Object.entries(this.message.usage.time_ms).map(([phase, ms]) => line(phase, spent(phase, ms), "")));
    }
  }
}

/** The brand's ring, small: it turns while an answer waits and stands still while it is paused. */
function waitRing() {
  const seats = Array.from({ length: 8 }, (_, i) => {
    const angle = (i / 8) * 2 * Math.PI - Math.PI / 2;
    return svg("circle", { cx: 12 + 8.2 * Math.cos(angle), cy: 12 + 8.2 * Math.sin(angle), r: 1.9, class: i ? null : "lit" });
  });
  return svg("svg", { class: "wait-ring", viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("g", {}, ...seats));
}
