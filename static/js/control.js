// Control of the answers that are being written at the end of the open conversation: stop, pause, give way to others.
import { changeRequest } from "./api.js";
import { toast } from "./notices.js";
import { StopSignal } from "./stop_signal.js";

/** @import { Message } from "./types.js" */

export class Control {
  /** @param {import("./chat.js").Chat} chat @param {import("./ready.js").Ready} ready */
  constructor(chat, ready) {
    this.chat = chat;
    this.ready = ready;
    this.stopSignal = new StopSignal((id) => chat.answers.stop(id));
  }

  /** Stops the answers at the end of the path, or their tools; returns whether this tab writes or runs them. */
  stop() {
    if (this.chat.tools.stop(this.chat.current.id)) return true;
    const { path, open } = this.chat.tree;
    const message = open.find(({ state }) => state === "streaming") ?? path.at(-1);
    if (message?.state !== "streaming") return false;
    if (this.chat.answers.stop(message.id)) return true;
    this.stopSignal.send(message, () => this.chat.find(message.id)?.state === "streaming");
    return false;
  }

  /** Answer at the end of the path that this tab writes, and whose request can be changed; undefined if there is none. */
  get running() {
    const { path, open } = this.chat.tree;
    return [...open, ...path.slice(-1)].find((message) => message.stream && this.chat.answers.drives(message));
  }

  /** Pauses the running answer, or lets it go on at the same token. */
  pause() {
    const { running } = this;
    if (running) this.#changeRequest(running, { state: running.paused ? "running" : "paused" });
  }

  /** Lets the running answer give way to others. */
  async later() {
    const { running } = this;
    if (!running || !(await this.#changeRequest(running, { service_tier: "flex" }))) return;
    running.later = true;
    this.chat.store.save(this.chat.current, running);
    this.ready.ask();
    this.chat.show();
  }

  /** @param {Message} message @param {import("./types.js").RequestChange} change */
  async #changeRequest({ stream }, change) {
    try {
      await changeRequest(/** @type {string} */ (stream), change);
      return true;
    } catch (error) {
      toast(/** @type {Error} */ (error).message);
      return false;
    }
  }
}
