// Actions on the open conversation: open, send, queue, choose versions, change settings.
import { Branches } from "./branches.js";
import { firstMessageThatFits } from "./context.js";
import { Control } from "./control.js";
import { blankConversation } from "./defaults.js";
import { readDraft, writeDraft } from "./drafts.js";
import { MODEL } from "./env.js";
import { isUnfinished } from "./labels.js";
import { toast } from "./notices.js";
import { firstTitle } from "./title.js";
import { ToolRuns } from "./tool_runs.js";
import { Tree } from "./tree.js";

/** @import { Conversation, Message, TextFile } from "./types.js" */

export class Chat {
  #models = [MODEL];
  /** `service_tier` of requests: the best that the key allows, since the user waits for the answers. */
  tier = "priority";
  /** That of requests whose results nobody waits for. */
  lowestTier = "flex";

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
    this.branches = new Branches(this);
    this.control = new Control(this, ready);
    this.tools = new ToolRuns(this);
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

  /** Last message of a conversation; of several answers without a choice, the first. @param {Conversation} conversation */
  last(conversation) {
    const { path, open } = new Tree(conversation);
    return open[0] ?? path.at(-1);
  }

  /** Whether an answer is written at the end of a conversation by any tab, or this tab runs a tool for it. @param {Conversation} conversation */
  #isAnswering(conversation) {
    const last = this.last(conversation);
    return (
      last?.state === "streaming" ||
      this.tools.isRunning(conversation.id) ||
      new Tree(conversation).open.some(({ state }) => state === "streaming")
    );
  }

  get isBusy() {
    return this.#isAnswering(this.current);
  }

  /** @param {string} text @param {TextFile[]} [files] @param {Conversation} [conversation] */
  send(text, files = [], conversation = this.current) {
    if (this.#isAnswering(conversation)) return;
    if (!conversation.messages.length) {
      this.change((conversation) => (conversation.title = firstTitle({ content: text, files })));
      this.composer.forget("new");
      history.pushState(null, "", `#/c/${conversation.id}`);
    }
    this.branches.ask(conversation, this.last(conversation)?.id ?? null, {
      content: text,
      ...(files.length ? { files } : {}),
    });
    if (conversation.messages.length === 2) this.composer.open(conversation.id);
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
    const last = this.last(conversation);
    const isComplete = messages.length === 1 && last?.state === "done" && !last.calls?.length;
    if (last && messages.includes(last) && !isComplete) return this.takeBack(conversation.id);
    const text = isComplete && messages.includes(last) ? this.queued.take(conversation.id) : "";
    if (text) this.send(text, [], conversation);
  }

  /**
   * Sends the results of the last answer's tool calls; returns whether it did.
   * @param {string} id @param {(string | undefined)[]} results of each call; undefined for one that was cut off
   */
  sendResults(id, results) {
    const { current } = this;
    const message = this.last(current);
    if (this.isBusy || message?.id !== id) return false;
    message.calls?.forEach((call, i) => (call.result ??= results[i]));
    this.store.save(current, message);
    this.branches.answer(current, message);
    return true;
  }

  /** Returns a message of the open conversation. @param {string} id */
  find(id) {
    return this.current.messages.find((message) => message.id === id);
  }

  /** Shows another version of a message. @param {string} id @param {number} step direction from the present one */
  choose(id, step) {
    const message = this.find(id);
    if (!message) return;
    this.store.choose(this.current.id, this.tree.choicesTo(message));
    this.thread.show(this.current);
    if (step) this.thread.focusVersion(id, step);
    this.show();
  }

  /**
   * Repeats a request without the oldest messages, after the conversation exceeded the context.
   * @param {string} id the failed answer
   */
  async leaveOut(id) {
    const { current } = this;
    const message = this.find(id);
    if (!message) return;
    const first = await firstMessageThatFits(current, this.tree.before(message));
    if (current !== this.current) return;
    if (!first) return toast("Your last message alone does not fit. Shorten it, or begin a new conversation.");
    this.change((conversation) => (conversation.first = first));
    if (isUnfinished(message)) this.branches.resume(id);
    else this.branches.regenerate(id);
  }

  /** Opens a new conversation with the text that did not fit as its draft. */
  startOver() {
    const { path } = this.tree;
    const text = path.at(-1)?.content ? "" : path.findLast(({ role }) => role === "user")?.content;
    if (text) writeDraft("draft.new", text);
    location.hash = "#/";
  }

  editLast() {
    const last = this.tree.path.findLast(({ role }) => role === "user");
    if (last && !this.isBusy) this.thread.edit(last.id);
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
