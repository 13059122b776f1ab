// Editor that replaces the text of a message. What is typed is kept as a draft until it is sent or cancelled.
import { h } from "./dom.js";
import { readDraft, writeDraft } from "./drafts.js";

export class Editor {
  /**
   * @param {{ draft: string, text: string, label: string, onCancel: () => void, sendsByEnter?: boolean,
   *   actions: [string, (text: string, caret: number) => boolean][] }} options the last action is the primary one, and an
   *   action returns whether the draft is no longer needed
   */
  constructor({ draft, text, label, onCancel, sendsByEnter = false, actions }) {
    this.draft = draft;
    this.area = h("textarea", { "aria-label": label, rows: "1", dir: "auto" });
    this.area.value = readDraft(draft) || text;
    const run = (/** @type {(text: string, caret: number) => boolean} */ action) =>
      this.area.value.trim() && action(this.area.value, this.area.selectionStart) && writeDraft(draft, "");
    const cancel = () => {
      writeDraft(draft, "");
      onCancel();
    };
    const button = (/** @type {string} */ text, /** @type {string} */ kind, /** @type {() => unknown} */ onclick) =>
      h("button", { class: `button small ${kind}`, type: "button", onclick }, text);
    this.area.addEventListener("input", () => {
      writeDraft(draft, this.area.value);
      this.#size();
    });
    this.area.addEventListener("keydown", (event) => {
      const isEnter = event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;
      if (event.key === "Escape") {
        event.stopPropagation();
        cancel();
      } else if (isEnter && (sendsByEnter || event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        run(actions[actions.length - 1][1]);
      }
    });
    const buttons = actions.map(([text, action], i) =>
      button(text, i === actions.length - 1 ? "primary" : "", () => run(action)),
    );
    this.node = h(
      "div",
      { class: "edit" },
      this.area,
      h("div", { class: "edit-foot" }, button("Cancel", "quiet", cancel), ...buttons),
    );
    requestAnimationFrame(() => this.#size()); // once it is in the page
  }

  focus() {
    this.area.focus();
    this.area.setSelectionRange(this.area.value.length, this.area.value.length);
  }

  #size() {
    this.area.style.setProperty("height", "auto");
    this.area.style.setProperty("height", `${this.area.scrollHeight}px`);
  }
}
