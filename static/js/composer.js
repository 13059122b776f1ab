// Message box: automatic height, Enter and its exceptions, drafts, send and stop.
import { byId } from "./dom.js";
import { readDraft, writeDraft } from "./drafts.js";
import { setStatus } from "./notices.js";

/** @import { TextFile } from "./types.js" */

export class Composer {
  #draftKey = "draft.new";
  #busy = false;
  #ready = true;

  /**
   * @param {import("./files.js").Files} files
   * @param {{ send(text: string, files: TextFile[]): void, queue(text: string): boolean, stop(): void, pause(): void, later(): void,
   *   editLast(): void }} actions
   */
  constructor(files, actions) {
    this.files = files;
    this.actions = actions;
    this.form = byId("composer", HTMLFormElement);
    this.area = byId("prompt", HTMLTextAreaElement);
    this.sendButton = byId("send", HTMLButtonElement);
    this.stopButton = byId("stop", HTMLButtonElement);
    this.pauseButton = byId("pause", HTMLButtonElement);
    this.laterButton = byId("later", HTMLButtonElement);
    this.note = byId("composer-note");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.form.addEventListener("click", (event) => event.target === this.form && this.focus());
    this.area.addEventListener("input", () => this.changed());
    this.area.addEventListener("keydown", (event) => this.#key(event));
    this.stopButton.addEventListener("click", () => this.actions.stop());
    this.pauseButton.addEventListener("click", () => this.actions.pause());
    this.laterButton.addEventListener("click", () => this.actions.later());
    new ResizeObserver(() => this.#size()).observe(this.form);
  }

  /** Shows the draft of a conversation. @param {string} id */
  open(id) {
    this.#draftKey = `draft.${id}`;
    this.area.value = readDraft(this.#draftKey);
    this.files.open(this.#draftKey);
  }

  get text() {
    return this.area.value;
  }

  /** Replaces the typed text. @param {string} text */
  setText(text) {
    this.area.value = text;
    this.changed();
  }

  /** Inserts text before the typed text. @param {string} text */
  prepend(text) {
    this.area.value = [text, this.area.value].filter(Boolean).join("\n\n");
    this.changed();
  }

  /** @param {string} id */
  forget(id) {
    writeDraft(`draft.${id}`, "");
  }

  /**
   * While an answer runs, Stop replaces Send, with Pause and Later if this tab writes it.
   * @param {boolean} busy @param {{ paused?: boolean, later?: boolean }} [running]
   */
  setBusy(busy, running) {
    const hadFocus = [this.stopButton, this.pauseButton, this.laterButton].includes(
      /** @type {HTMLButtonElement} */ (document.activeElement),
    );
    this.pauseButton.hidden = !running;
    this.laterButton.hidden = !running || Boolean(running.later);
    this.pauseButton.title = running?.paused ? "Go on at the same word" : "Pause, and keep the place";
    this.pauseButton.setAttribute("aria-label", running?.paused ? "Go on" : "Pause");
    this.pauseButton.toggleAttribute("data-paused", Boolean(running?.paused));
    this.#busy = busy;
    this.stopButton.hidden = !busy;
    this.sendButton.hidden = busy;
    if (!busy && hadFocus) this.focus();
  }

  /** Enables sending once the model is ready; typing is always possible. @param {boolean} ready */
  setReady(ready) {
    this.#ready = ready;
    if (ready) this.note.textContent = "";
    this.changed();
  }

  focus() {
    this.area.focus({ preventScroll: true });
  }

  /** Keeps the keyboard focus in the conversation when the pressed button has disappeared. */
  restoreFocus() {
    const active = document.activeElement;
    if (active && active !== document.body && active.getClientRects().length) return;
    if (matchMedia("(hover: hover)").matches) this.focus();
    else byId("scroller").focus({ preventScroll: true });
  }

  /** Focuses the box on a desktop only; on a phone the keyboard would cover the messages. */
  focusOnDesktop() {
    if (matchMedia("(hover: hover)").matches) this.focus();
  }

  /** Adapts the box to a changed text or files. */
  changed() {
    writeDraft(this.#draftKey, this.area.value);
    this.sendButton.disabled = !this.#ready || !(this.area.value.trim() || this.files.list.length);
    this.#size();
  }

  #size() {
    this.area.style.setProperty("height", "auto");
    this.area.style.setProperty("height", `${this.area.scrollHeight}px`);
    this.area.style.setProperty("overflow-y", this.area.scrollHeight > this.area.clientHeight + 1 ? "auto" : "hidden");
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    // An Enter that ends a composition (Japanese, Chinese, Korean) does not send; Safari reports it as key code 229.
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key === "Enter" && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      this.#send();
    } else if (event.key === "ArrowUp" && !this.area.value) {
      event.preventDefault();
      this.actions.editLast();
    }
  }

  /** Explains why Enter did nothing. @param {string} reason */
  #explain(reason) {
    this.note.textContent = reason;
    setStatus(reason);
  }

  #send() {
    const text = this.area.value.trim();
    const { list } = this.files;
    if (!text && !list.length) return;
    if (!this.#ready) return this.#explain("Not sent: the model is not ready yet. Send it again when it is.");
    if (this.#busy && list.length) return this.#explain("Not sent: files can be sent when the answer is complete.");
    if (this.#busy && !this.actions.queue(text)) return;
    this.area.value = "";
    this.changed();
    if (!this.#busy) this.actions.send(text, this.files.take());
  }
}
