// Tree of a conversation's messages: the path that is shown, the siblings of a message, and branches. Pure.

/** @import { Conversation, Message } from "./types.js" */

/** Key of the choice between first messages, which have no parent. */
const BEGINNING = "";

export class Tree {
  #byId = /** @type {Map<string, Message>} */ (new Map());
  #children = /** @type {Map<string, Message[]>} */ (new Map());

  /** @param {Pick<Conversation, "messages" | "gone" | "chosen">} conversation */
  constructor({ messages, gone = {}, chosen = {} }) {
    this.gone = gone;
    this.deletions = Object.keys(gone).length;
    this.chosen = chosen;
    for (const message of messages) this.#byId.set(message.id, message);
    for (const message of messages) {
      const key = this.#keyOf(message);
      const siblings = this.#children.get(key);
      if (siblings) siblings.push(message);
      else this.#children.set(key, [message]);
    }
    for (const siblings of this.#children.values()) siblings.sort(byAge);
  }

  /** Messages from the first one to the end of the branch that was chosen last, or else of the newest. */
  get path() {
    const path = /** @type {Message[]} */ ([]);
    for (let key = BEGINNING; ; key = /** @type {Message} */ (path.at(-1)).id) {
      const siblings = this.#children.get(key);
      if (!siblings) return path;
      path.push(/** @type {Message} */ (siblings.find(({ id }) => id === this.chosen[key]) ?? siblings.at(-1)));
    }
  }

  /** Answers of one request at the end of the path, of which none was chosen; empty if there are not several. */
  get open() {
    const last = this.path.at(-1);
    if (!last?.run || this.chosen[this.#keyOf(last)]) return [];
    const answers = this.siblings(last).filter(({ run }) => run === last.run);
    return answers.length > 1 ? answers : [];
  }

  /** Returns all messages with the same parent, with the message itself, the oldest first. @param {Message} message */
  siblings(message) {
    return this.#children.get(this.#keyOf(message)) ?? [message];
  }

  /** Returns the messages before a message, from the first one. @param {Message} message */
  before(message) {
    const path = /** @type {Message[]} */ ([]);
    for (let at = this.parentOf(message); at; at = this.parentOf(at)) path.unshift(at);
    return path;
  }

  /** Returns a message and all that follow it in any branch. @param {Message} message */
  branch(message) {
    const found = [message];
    for (const one of found) found.push(...(this.#children.get(one.id) ?? []));
    return found;
  }

  /** Returns the choices with which the path leads to a message. @param {Message} message */
  choicesTo(message) {
    const path = [...this.before(message), message];
    return Object.fromEntries(path.map((one) => [this.#keyOf(one), one.id]));
  }

  /** Returns the nearest message before one that was not deleted. @param {Message} message */
  parentOf(message) {
    return this.#byId.get(this.#keyOf(message));
  }

  /** Returns the id of the nearest message before it that was not deleted. @param {Message} message */
  #keyOf({ parent }) {
    let left = this.deletions; // which ends a cycle
    let at = parent;
    while (at !== null && !this.#byId.has(at)) at = left-- > 0 ? (this.gone[at] ?? null) : null;
    return at ?? BEGINNING;
  }
}

/** @param {Message} a @param {Message} b */
const byAge = (a, b) =>
  a.created - b.created || (a.choice ?? 0) - (b.choice ?? 0) || Number(a.id > b.id) - Number(a.id < b.id);
