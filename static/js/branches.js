// New messages in the tree of a conversation: questions, answers, and other versions of them; and the deletion of branches.
import { newId } from "./ids.js";
import { isStreaming } from "./labels.js";
import { toast } from "./notices.js";
import { requestFor } from "./sampling.js";
import { Tree } from "./tree.js";

/** @import { Conversation, Message } from "./types.js" */

const UNDO_MS = 12_000;

export class Branches {
  /** @param {import("./chat.js").Chat} chat */
  constructor(chat) {
    this.chat = chat;
  }

  /** Adds a question and requests its answer. @param {Conversation} conversation @param {string | null} parent @param {Partial<Message>} fields */
  ask(conversation, parent, fields) {
    const question = this.#message("user", parent, fields);
    this.answer(conversation, question, { unsaved: [question] });
  }

  /** Creates a message. @param {Message["role"]} role @param {string | null} parent @param {Partial<Message>} fields @returns {Message} */
  #message(role, parent, fields) {
    return { id: newId(), parent, role, content: "", created: Date.now(), ...fields };
  }

  /** Creates an answer that is about to be written. @param {string} parent @param {Partial<Message>} [fields] */
  #emptyAnswer(parent, fields = {}) {
    const { model } = this.chat.current;
    return this.#message("assistant", parent, { sentAt: Date.now(), state: "streaming", model, ...fields });
  }

  /**
   * Requests answers to a message.
   * @param {Conversation} conversation @param {Message} parent
   * @param {{ unsaved?: Message[], count?: number, replayed?: Message }} [options] unsaved: messages to save before them;
   *   count: of answers; replayed: an answer whose seed they have
   */
  answer(conversation, parent, { unsaved = [], count = 1, replayed } = {}) {
    const { model, sampling } = conversation;
    const seed = Number(sampling.seed ?? replayed?.seed ?? crypto.getRandomValues(new Uint32Array(1))[0]);
    const fields = { model, seed, sampling: { ...sampling }, ...(replayed ? { replayOf: replayed.id } : {}) };
    const answers = Array.from({ length: count }, () => this.#emptyAnswer(parent.id, fields));
    if (count > 1) answers.forEach((answer, choice) => Object.assign(answer, { run: answers[0].id, choice }));
    const before = [...new Tree(conversation).before(parent), parent];
    const body = { ...requestFor(conversation, before, model, this.chat.tier), seed };
    this.#begin(conversation, [...unsaved, ...answers], answers, count > 1 ? { ...body, n: count } : body);
  }

  /**
   * Saves and shows new messages, and starts the answers among them.
   * @param {Conversation} conversation @param {Message[]} added @param {Message[]} answers
   * @param {import("./types.js").AnswerRequest | null} body
   */
  #begin(conversation, added, answers, body) {
    conversation.updated = Date.now();
    this.chat.store.append(conversation, added);
    const choices = new Tree(conversation).choicesTo(/** @type {Message} */ (added.at(-1)));
    if (answers.length > 1) choices[/** @type {string} */ (answers[0].parent)] = ""; // none of them yet
    this.chat.store.choose(conversation.id, choices);
    if (conversation === this.chat.current) this.chat.thread.show(conversation);
    if (body) this.chat.answers.start(conversation, answers, body);
    if (conversation !== this.chat.current) return;
    if (body) this.chat.thread.follow.toEnd();
    this.chat.composer.restoreFocus();
    this.chat.show();
  }

  /** Continues an answer after its present text, in a new version. @param {string} id */
  resume(id) {
    const message = this.chat.find(id);
    if (message) this.#continue(message, message.content, message.thinking);
  }

  /** Continues an answer after another text, in a new version. @param {string} id @param {string} text */
  goOnFrom(id, text) {
    const message = this.chat.find(id);
    if (!text.trim())
      this.regenerate(id); // nothing is left to continue
    else if (message) this.#continue(message, text, message.thinking);
    return Boolean(message);
  }

  /** @param {Message} message @param {string} content @param {string} [thinking] */
  #continue({ parent, thinkingAt, thoughtMs, lastAt = 0, model }, content, thinking) {
    const { current } = this.chat;
    const now = Date.now();
    // Reasoning that goes on has lasted as long as before the pause.
    const began = thinkingAt && thoughtMs === undefined ? thinkingAt + now - (lastAt || now) : thinkingAt;
    const reasoning = thinking ? { thinking, thinkingAt: began, thoughtMs } : {};
    const answer = this.#emptyAnswer(/** @type {string} */ (parent), { content, model, ...reasoning });
    const before = [...this.chat.tree.before(answer), answer];
    this.#begin(current, [answer], [answer], requestFor(current, before, current.model, this.chat.tier, true));
  }

  /** Replaces the text of an answer, in a new version. @param {string} id @param {string} content */
  rewrite(id, content) {
    const message = this.chat.find(id);
    if (!message || message.content === content) return Boolean(message);
    const { parent, model, thinking, thoughtMs, calls } = message;
    const fields = { content, model, thinking, thoughtMs, calls, state: /** @type {const} */ ("done") };
    this.#begin(this.chat.current, [this.#message("assistant", parent, fields)], [], null);
    return true;
  }

  /** Requests other answers beside an answer, or instead of one without text. @param {string} id @param {number} [count] */
  regenerate(id, count = 1) {
    const { current } = this.chat;
    const message = this.chat.find(id);
    const parent = this.chat.find(message?.parent ?? "");
    if (!message || !parent) return;
    this.chat.control.stop();
    const isEmpty = !message.content && !message.thinking && !message.calls?.length;
    if (isEmpty && this.chat.tree.branch(message).length === 1) this.chat.store.cut(current, [message]);
    this.answer(current, parent, { count });
  }

  /** Repeats an answer with its seed and the present settings, as another version. @param {string} id */
  replay(id) {
    const { current } = this.chat;
    const replayed = this.chat.find(id);
    const parent = this.chat.find(replayed?.parent ?? "");
    if (!parent) return;
    this.chat.control.stop();
    this.answer(current, parent, { replayed });
  }

  /** Asks another version of a question; returns whether it did. @param {string} id @param {string} text */
  edit(id, text) {
    const message = this.chat.find(id);
    if (!message) return false;
    this.chat.control.stop();
    this.ask(this.chat.current, message.parent, { content: text.trim(), files: message.files });
    this.chat.composer.focusOnDesktop();
    return true;
  }

  /** Deletes a message and all that follow it. @param {string} id */
  removeBranch(id) {
    const { current } = this.chat;
    const message = this.chat.find(id);
    if (!message) return;
    const branch = this.chat.tree.branch(message);
    for (const one of branch.filter(isStreaming)) this.chat.answers.stop(one.id);
    this.chat.store.cut(current, branch);
    this.chat.answers.dropRemoved(current.id); // an answer beside it may be arriving in the same stream
    this.chat.thread.show(current);
    this.chat.show();
    const undo = () => {
      this.chat.store.append(current, branch);
      this.chat.store.choose(current.id, new Tree(current).choicesTo(message));
      if (current === this.chat.current) this.chat.thread.show(current);
      this.chat.show();
    };
    const text = branch.length > 1 ? `Deleted ${branch.length} messages` : "Deleted a message";
    toast(text, { action: "Undo", run: undo, ms: UNDO_MS });
  }
}
