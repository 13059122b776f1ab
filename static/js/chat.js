// Actions on the open conversation: open, send, regenerate, edit, stop, remove.
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
import { Truncation } from "./truncation.js";

/** @import { Conversation, Message } from "./types.js" */

export class Chat {
  #models = [MODEL];
  /** `service_tier` of requests: the best that the key allows, since the user waits for the answers. */
  tier = "priority";

  /**
   * @param {{ store: import("./store.js").Store, answers: import("./answers.js").Answers, thread: import("./thread.js").Thread,
   *   composer: import("./composer.js").Composer, queue: import("./queue.js").Queue, show: () => void }} parts
   */
  constructor({ store, answers, thread, composer, queue, show }) {
    this.store = store;
    this.answers = answers;
    this.thread = thread;
    this.composer = composer;
    this.queued = queue;
    this.show = show;
    this.truncation = new Truncation(this);
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

  /** Shows a conversation, or a blank one if the id is unknown. @param {string} [id] */
  open(id = "") {
    this.current = this.store.get(id) ?? this.#blank();
    this.thread.show(this.current.messages, this.current.first);
    this.composer.open(this.current.messages.length ? this.current.id : "new");
    this.queued.show(this.current.id);
    if (!this.isBusy) this.takeBack(this.current.id);
    this.#takeOver();
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
    this.thread.sync(conversation.messages, conversation.first);
    this.#takeOver();
    return this.show();
  }

  #removedElsewhere() {
    history.replaceState(null, "", "#/");
    this.open();
    toast("Another tab deleted this conversation.");
  }

  #takeOver() {
    if (this.isAnsweredElsewhere)
      this.answers.takeOver(this.current, /** @type {Message} */ (this.current.messages.at(-1)));
  }

  /** Whether another tab writes an answer into the open conversation; it would overwrite messages added by this tab. */
  get isAnsweredElsewhere() {
    return this.hasOtherWriter(this.current);
  }

  /** Whether another tab writes an answer into a conversation. @param {Conversation} conversation */
  hasOtherWriter({ id, messages }) {
    return messages.at(-1)?.state === "streaming" && !this.answers.running.has(id);
  }

  get isBusy() {
    return this.answers.running.has(this.current.id) || this.isAnsweredElsewhere;
  }

  /** @param {string} text @param {Conversation} [conversation] */
  send(text, conversation = this.current) {
    if (this.answers.running.has(conversation.id) || this.hasOtherWriter(conversation)) return;
    if (!conversation.messages.length) {
      this.change((conversation) => (conversation.title = titleFrom(text)));
      this.composer.forget("new");
      history.pushState(null, "", `#/c/${conversation.id}`);
    }
    this.#answer(
      conversation,
      this.#add(conversation, { id: newId(), role: "user", content: text, created: Date.now() }),
    );
    if (conversation.messages.length === 2) this.composer.open(conversation.id);
  }

  /** Queues a message until the running answer is complete; returns whether it was accepted. @param {string} text */
  queue(text) {
    if (this.#refuseIfTaken()) return false;
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
   * Handles the end of an answer: after a complete one without tool calls, the queued message is sent.
   * @param {Conversation} conversation @param {Message} message
   */
  onAnswerEnd(conversation, { state, calls }) {
    if (state !== "done" || calls?.length) return this.takeBack(conversation.id);
    const text = this.queued.take(conversation.id);
    if (text) this.send(text, conversation);
  }

  /** @param {Conversation} conversation @param {Message} message */
  #add(conversation, message) {
    conversation.messages.push(message);
    if (conversation === this.current) this.thread.append(message);
    return message;
  }

  /**
   * Requests an answer to the current messages. @param {Message[]} added messages that are not saved yet
   * @param {Conversation} conversation
   */
  #answer(conversation, ...added) {
    const now = Date.now();
    const body = requestFor(conversation, conversation.messages, conversation.model, this.tier);
    const message = this.#add(conversation, {
      id: newId(),
      role: "assistant",
      content: "",
      created: now,
      sentAt: now,
      state: "streaming",
      model: conversation.model,
    });
    conversation.updated = now;
    this.store.append(conversation, [...added, message]);
    this.answers.start(conversation, message, body);
    if (conversation !== this.current) return;
    this.thread.follow.toEnd();
    this.composer.restoreFocus();
  }

  /**
   * Sends the results of the last answer's tool calls; returns whether it did.
   * @param {string} id @param {(string | undefined)[]} results of each call; undefined for one that was cut off
   */
  sendResults(id, results) {
    const { current } = this;
    const message = current.messages.at(-1);
    if (this.#refuseIfTaken() || this.isBusy || message?.id !== id) return false;
    message.calls?.forEach((call, i) => (call.result = results[i]));
    this.store.save(current, message);
    this.thread.answer(message)?.settle();
    this.#answer(current);
    return true;
  }

  /** Continues the last answer after its present text. @param {string} id */
  resume(id) {
    if (this.#refuseIfTaken() || this.isBusy) return;
    const { current } = this;
    const message = current.messages.at(-1);
    if (message?.id !== id) return;
    const body = requestFor(current, current.messages, current.model, this.tier, true);
    this.answers.continue(current, message, body);
    this.composer.restoreFocus();
  }

  /**
   * Repeats a request without the oldest messages, after the conversation exceeded the context.
   * @param {string} id the failed answer
   */
  async leaveOut(id) {
    const { current } = this;
    const first = await firstMessageThatFits(current);
    if (current !== this.current) return;
    if (!first) return toast("Your last message alone does not fit. Shorten it, or begin a new conversation.");
    this.change((conversation) => (conversation.first = first));
    this.thread.markFirst(first);
    if (isUnfinished(/** @type {Message} */ (current.messages.at(-1)))) this.resume(id);
    else this.regenerate(id);
  }

  /** Opens a new conversation with the text that did not fit as its draft. */
  startOver() {
    const last = this.current.messages.at(-1);
    const text = last?.content ? "" : this.current.messages.findLast(({ role }) => role === "user")?.content;
    if (text) writeDraft("draft.new", text);
    location.hash = "#/";
  }

  /** @param {string} id an answer */
  regenerate(id) {
    if (this.#refuseIfTaken()) return;
    this.truncation.run(id);
    this.#answer(this.current);
  }

  /** Replaces a question and requests a new answer; returns whether it did. @param {string} id @param {string} text */
  edit(id, text) {
    if (this.#refuseIfTaken()) return false;
    this.truncation.run(id);
    this.send(text.trim());
    this.composer.focusOnDesktop();
    return true;
  }

  #refuseIfTaken() {
    if (this.isAnsweredElsewhere) toast("Another tab is writing in this conversation.");
    return this.isAnsweredElsewhere;
  }

  editLast() {
    const last = this.current.messages.findLast(({ role }) => role === "user");
    if (last && !this.isBusy) this.thread.edit(last.id);
  }

  stop() {
    const { current } = this;
    if (this.isAnsweredElsewhere) this.stopSignal.send(current, () => this.hasOtherWriter(current));
    return this.answers.stop(this.current.id);
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
