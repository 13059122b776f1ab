// Deletion of the end of a conversation before another answer, with an undo.
import { toast } from "./notices.js";

/** @import { Message } from "./types.js" */

const UNDO_MS = 12_000; // answers can be compared only when the new one has grown

export class Truncation {
  /** @param {import("./chat.js").Chat} chat */
  constructor(chat) {
    this.chat = chat;
  }

  /**
   * Deletes a message and all after it. Offers an undo if an answer's text, or more than one question or answer, was
   * deleted.
   * @param {string} id
   */
  run(id) {
    const { answers, current, store, thread } = this.chat;
    answers.stop(current.id);
    const before = [...current.messages];
    const at = before.findIndex((message) => message.id === id);
    const dropped = before.slice(at);
    store.cut(current.id, id);
    thread.show(current.messages, current.first);
    const isMore = dropped.length > (before[at].role === "user" ? 2 : 1);
    const hasText = dropped.some(
      ({ role, content, thinking, calls }) => role === "assistant" && (content || thinking || calls?.length),
    );
    const text = isMore ? "The messages after it were deleted." : "The earlier answer was replaced.";
    if (isMore || hasText) this.#offerUndo(text, current.id, before, at);
  }

  /** @param {string} text @param {string} id @param {Message[]} messages @param {number} kept */
  #offerUndo(text, id, messages, kept) {
    toast(text, { action: "Undo", run: () => this.#undo(id, messages, kept), ms: UNDO_MS });
  }

  /**
   * Restores `messages`, of which the first `kept` remained, unless more than one answer was added since.
   * @param {string} id @param {Message[]} messages @param {number} kept
   */
  #undo(id, messages, kept) {
    const { answers, current, store } = this.chat;
    const conversation = store.get(id);
    if (!conversation) return;
    if (this.chat.hasOtherWriter(conversation))
      return this.#offerUndo("Another tab is writing in this conversation.", id, messages, kept);
    if (conversation.messages.length > kept + 2) return toast("The conversation has continued since.");
    answers.stop(id);
    conversation.messages = messages;
    store.restore(conversation);
    if (id === current.id) this.chat.open(id);
  }
}
