// Actions on the open conversation: open, send, regenerate, edit, stop, remove.
import { changeRequest } from "./api.js";
import { firstMessageThatFits } from "./context.js";
import { blankConversation } from "./defaults.js";
import { readDraft, writeDraft } from "./drafts.js";
import { MODEL } from "./env.js";
import { newId } from "./ids.js";
import { isUnfinished } from "./labels.js";
import { toast } from "./notices.js";
import { requestFor } from "./sampling.js";
import { StopSignal } from "./stop_signal.js";
import { titleFrom } from "./store.js";
import { Tree } from "./tree.js";

/** @import { Conversation, Message } from "./types.js" */

export class Chat {
  #models = [MODEL];
  /** `service_tier` of requests: the best that the key allows, since the user waits for the answers. */
  tier = "priority";

  /**
   * @param {{ store: import("./store.js").Store, answers: import("./answers.js").Answers, thread: import("./thread.js").Thread,
   *   composer: import("./composer.js").Composer, queue: import("./queue.js").Queue, ready: import("./ready.js").Ready,
   *   show: () => void }} parts
   */
  constructor({ store, answers, thread, composer, queue, ready, show }) {
    this.store = store;
    this.answers = answers;
    this.thread = thread;
    this.composer = composer;
    this.queued = queue;
    this.ready = ready;
    this.show = show;
    this.stopSignal = new StopSignal((id) => answers.stop(id));
    this.current = this.#blank();
  }

  /** @param {string[]} models */
  setModels(models) {
    this.#models = models;
    if (!models.includes(this.current.model)) this.current.model = models[0];
    this.show();
  }

  get models() {
    return this.#models;
  }

  #blank() {
    return blankConversation(this.#models[0]);
  }

  /** Tree of the open conversation. */
  get tree() {
    return new Tree(this.current);
  }

  /** Shows a conversation, or a blank one if the id is unknown. @param {string} [id] */
  open(id = "") {
    this.current = this.store.get(id) ?? this.#blank();
    this.thread.show(this.current);
    this.composer.open(this.current.messages.length ? this.current.id : "new");
    this.queued.show(this.current.id);
    if (!this.isBusy) this.takeBack(this.current.id);
    this.#takeOver();
    this.ready.seen(this.current.id);
    this.show();
  }

  /**
   * Updates the page after another tab changed or deleted a conversation. An answer of this tab continues if it still
   * exists.
   * @param {string} id
   */
  changedElsewhere(id) {
    this.answers.dropRemoved(id);
    if (id !== this.current.id) return this.show();
    const conversation = this.store.get(id);
    if (!conversation) return this.#removedElsewhere();
    this.current = conversation;
    this.thread.show(conversation);
    this.queued.show(id); // another tab may have sent it
    this.#takeOver();
    return this.show();
  }

  #removedElsewhere() {
    history.replaceState(null, "", "#/");
    this.open();
    toast("Another tab deleted this conversation.");
  }

  /** Waits for the end of the tabs that write answers into the open conversation. */
  #takeOver() {
    for (const message of this.current.messages)
      if (message.state === "streaming" && !this.answers.drives(message)) this.answers.takeOver(this.current, message);
  }

  /** Last message of a conversation. @param {Conversation} conversation */
  #last(conversation) {
    return new Tree(conversation).path.at(-1);
  }

  /** Whether an answer is written at the end of a conversation, by any tab. @param {Conversation} conversation */
  #isAnswering(conversation) {
    const last = this.#last(conversation);
    return last?.state === "streaming" || new Tree(conversation).open.some(({ state }) => state === "streaming");
  }

  get isBusy() {
    return this.#isAnswering(this.current);
  }

  /** @param {string} text @param {Conversation} [conversation] */
  send(text, conversation = this.current) {
    if (this.#isAnswering(conversation)) return;
    if (!conversation.messages.length) {
      this.change((conversation) => (conversation.title = titleFrom(text)));
      this.composer.forget("new");
      history.pushState(null, "", `#/c/${conversation.id}`);
    }
    this.#ask(conversation, this.#last(conversation)?.id ?? null, text);
    if (conversation.messages.length === 2) this.composer.open(conversation.id);
  }

  /** Adds a question and requests its answer. @param {Conversation} conversation @param {string | null} parent @param {string} text */
  #ask(conversation, parent, text) {
    const question = this.#message("user", parent, { content: text });
    this.#answer(conversation, question, { unsaved: [question] });
  }

  /** Queues a message until the running answer is complete; returns whether it was accepted. @param {string} text */
  queue(text) {
    this.queued.put(this.current.id, text);
    return true;
  }

  /** Moves the queued message of a conversation back into the message box. @param {string} id */
  takeBack(id) {
    const text = this.queued.take(id);
    if (!text) return;
    if (id === this.current.id) this.composer.prepend(text);
    else writeDraft(`draft.${id}`, [text, readDraft(`draft.${id}`)].filter(Boolean).join("\n\n"));
  }

  /**
   * Handles the end of answers: after a complete one without tool calls, the queued message is sent.
   * @param {Conversation} conversation @param {Message[]} messages
   */
  onAnswerEnd(conversation, messages) {
    const last = this.#last(conversation);
    const isComplete = messages.length === 1 && last?.state === "done" && !last.calls?.length;
    if (last && messages.includes(last) && !isComplete) return this.takeBack(conversation.id);
    const text = isComplete && messages.includes(last) ? this.queued.take(conversation.id) : "";
    if (text) this.send(text, conversation);
  }

  /** Creates a message. @param {Message["role"]} role @param {string | null} parent @param {Partial<Message>} fields @returns {Message} */
  #message(role, parent, fields) {
    return { id: newId(), parent, role, content: "", created: Date.now(), ...fields };
  }

  /** Creates an answer that is about to be written. @param {string} parent @param {Partial<Message>} [fields] */
  #emptyAnswer(parent, fields = {}) {
    const { model } = this.current;
    return this.#message("assistant", parent, { sentAt: Date.now(), state: "streaming", model, ...fields });
  }

  /**
   * Requests answers to a message.
   * @param {Conversation} conversation @param {Message} parent
   * @param {{ unsaved?: Message[], count?: number }} [options] unsaved: messages to save before them; count: of answers
   */
  #answer(conversation, parent, { unsaved = [], count = 1 } = {}) {
    const answers = Array.from({ length: count }, () => this.#emptyAnswer(parent.id, { model: conversation.model }));
    if (count > 1) answers.forEach((answer, choice) => Object.assign(answer, { run: answers[0].id, choice }));
    const before = [...new Tree(conversation).before(parent), parent];
    const body = requestFor(conversation, before, conversation.model, this.tier);
    this.#begin(conversation, [...unsaved, ...answers], answers, count > 1 ? { ...body, n: count } : body);
  }

  /**
   * Saves and shows new messages, and starts the answers among them.
   * @param {Conversation} conversation @param {Message[]} added @param {Message[]} answers
   * @param {import("./types.js").AnswerRequest | null} body
   */
  #begin(conversation, added, answers, body) {
    conversation.updated = Date.now();
    this.store.append(conversation, added);
    const choices = new Tree(conversation).choicesTo(/** @type {Message} */ (added.at(-1)));
    if (answers.length > 1) choices[/** @type {string} */ (answers[0].parent)] = ""; // none of them yet
    this.store.choose(conversation.id, choices);
    if (conversation === this.current) this.thread.show(conversation);
    if (body) this.answers.start(conversation, answers, body);
    if (conversation !== this.current) return;
    if (body) this.thread.follow.toEnd();
    this.composer.restoreFocus();
    this.show();
  }

  /**
   * Sends the results of the last answer's tool calls; returns whether it did.
   * @param {string} id @param {(string | undefined)[]} results of each call; undefined for one that was cut off
   */
  sendResults(id, results) {
    const { current } = this;
    const message = this.#last(current);
    if (this.isBusy || message?.id !== id) return false;
    message.calls?.forEach((call, i) => (call.result = results[i]));
    this.store.save(current, message);
    this.#answer(current, message);
    return true;
  }

  /** Continues an answer after its present text, in a new version. @param {string} id */
  resume(id) {
    const message = this.#find(id);
    if (message) this.#continue(message, message.content, message.thinking);
  }

  /** Continues an answer after another text, in a new version. @param {string} id @param {string} text */
  goOnFrom(id, text) {
    const message = this.#find(id);
    if (message) this.#continue(message, text, message.thinking);
    return Boolean(message);
  }

  /** @param {Message} message @param {string} content @param {string} [thinking] */
  #continue({ parent, thinkingAt, thoughtMs, lastAt = 0, model }, content, thinking) {
    const { current } = this;
    const now = Date.now();
    // Reasoning that goes on has lasted as long as before the pause.
    const began = thinkingAt && thoughtMs === undefined ? thinkingAt + now - (lastAt || now) : thinkingAt;
    const reasoning = thinking ? { thinking, thinkingAt: began, thoughtMs } : {};
    const answer = this.#emptyAnswer(/** @type {string} */ (parent), { content, model, ...reasoning });
    const before = [...this.tree.before(answer), answer];
    this.#begin(current, [answer], [answer], requestFor(current, before, current.model, this.tier, true));
  }

  /** Replaces the text of an answer, in a new version. @param {string} id @param {string} content */
  rewrite(id, content) {
    const message = this.#find(id);
    if (!message || message.content === content) return Boolean(message);
    const { parent, model, thinking, thoughtMs, calls } = message;
    const fields = { content, model, thinking, thoughtMs, calls, state: /** @type {const} */ ("done") };
    this.#begin(this.current, [this.#message("assistant", parent, fields)], [], null);
    return true;
  }

  /** @param {string} id */
  #find(id) {
    return this.current.messages.find((message) => message.id === id);
  }

  /** Shows another version of a message. @param {string} id @param {number} step direction from the present one */
  choose(id, step) {
    const message = this.#find(id);
    if (!message) return;
    this.store.choose(this.current.id, this.tree.choicesTo(message));
    this.thread.show(this.current);
    if (step) this.thread.focusVersion(id, step);
    this.show();
  }

  /** Deletes a message and all that follow it. @param {string} id */
  removeBranch(id) {
    const { current } = this;
    const message = this.#find(id);
    if (!message) return;
    const branch = this.tree.branch(message);
    for (const one of branch) this.answers.stop(one.id);
    this.store.cut(current, branch);
    this.thread.show(current);
    this.show();
    const undo = () => {
      this.store.append(current, branch);
      this.store.choose(current.id, new Tree(current).choicesTo(message));
      if (current === this.current) this.thread.show(current);
      this.show();
    };
    const text = branch.length > 1 ? `Deleted ${branch.length} messages` : "Deleted a message";
    toast(text, { action: "Undo", run: undo, ms: 12_000 });
  }

  /**
   * Repeats a request without the oldest messages, after the conversation exceeded the context.
   * @param {string} id the failed answer
   */
  async leaveOut(id) {
    const { current } = this;
    const message = this.#find(id);
    if (!message) return;
    const first = await firstMessageThatFits(current, this.tree.before(message));
    if (current !== this.current) return;
    if (!first) return toast("Your last message alone does not fit. Shorten it, or begin a new conversation.");
    this.change((conversation) => (conversation.first = first));
    if (isUnfinished(message)) this.resume(id);
    else this.regenerate(id);
  }

  /** Opens a new conversation with the text that did not fit as its draft. */
  startOver() {
    const { path } = this.tree;
    const text = path.at(-1)?.content ? "" : path.findLast(({ role }) => role === "user")?.content;
    if (text) writeDraft("draft.new", text);
    location.hash = "#/";
  }

  /** Requests other answers beside an answer, or instead of one without text. @param {string} id @param {number} [count] */
  regenerate(id, count = 1) {
    const { current } = this;
    const message = this.#find(id);
    const parent = this.#find(message?.parent ?? "");
    if (!message || !parent) return;
    this.stop();
    const isEmpty = !message.content && !message.thinking && !message.calls?.length;
    if (isEmpty && this.tree.branch(message).length === 1) this.store.cut(current, [message]);
    this.#answer(current, parent, { count });
  }

  /** Asks another version of a question; returns whether it did. @param {string} id @param {string} text */
  edit(id, text) {
    const message = this.#find(id);
    if (!message) return false;
    this.stop();
    this.#ask(this.current, message.parent, text.trim());
    this.composer.focusOnDesktop();
    return true;
  }

  editLast() {
    const last = this.tree.path.findLast(({ role }) => role === "user");
    if (last && !this.isBusy) this.thread.edit(last.id);
  }

  /** Stops the answers at the end of the path; returns whether this tab writes them. */
  stop() {
    const { path, open } = this.tree;
    const message = open.find(({ state }) => state === "streaming") ?? path.at(-1);
    if (message?.state !== "streaming") return false;
    if (this.answers.stop(message.id)) return true;
    this.stopSignal.send(message, () => this.#find(message.id)?.state === "streaming");
    return false;
  }

  /** Answer at the end of the path that this tab writes, and whose request can be changed; undefined if there is none. */
  get running() {
    const { path, open } = this.tree;
    return [...open, ...path.slice(-1)].find((message) => message.stream && this.answers.drives(message));
  }

  /** Pauses the running answer, or lets it go on at the same token. */
  pause() {
    const { running } = this;
    if (running) this.#changeRequest(running, { state: running.paused ? "running" : "paused" });
  }

  /** Lets the running answer give way to others. */
  async later() {
    const { current, running } = this;
    if (!running || !(await this.#changeRequest(running, { service_tier: "flex" }))) return;
    running.later = true;
    this.store.save(current, running);
    this.ready.ask();
    this.show();
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

  /** @param {string} model */
  setModel(model) {
    this.change((conversation) => (conversation.model = model));
  }

  /**
   * Changes fields of the open conversation; before its first message it is not saved.
   * @param {import("./store.js").Change} apply
   */
  change(apply) {
    if (this.store.get(this.current.id)) this.store.change(this.current.id, apply);
    else apply(this.current);
    this.show();
  }
}
