// Runs of the tools that an answer calls, and the rounds of answers and tools that follow each other. No tool is run twice
// without a click, since it may have had its effect.
import { runsAlways, setAlways } from "./always_run.js";
import { ApiError, callServerTool } from "./api.js";
import { HAS_TOOLS } from "./env.js";
import { askKey } from "./key_dialog.js";
import { errorText } from "./labels.js";
import { setStatus, toast } from "./notices.js";
import { serverToolOf } from "./server_tools.js";
import { awaitsResults, callState } from "./tools.js";

/** @import { CallRun, Conversation, Message, ServerTool, ToolCall } from "./types.js" */

const MAX_ROUNDS = 20; // of a conversation without a deed of the user
const MAYBE = "It may have had its effect.";

export class ToolRuns {
  #running = /** @type {Map<ToolCall, { conversation: string, stop: AbortController }>} */ (new Map());
  #rounds = /** @type {Map<string, number>} */ (new Map()); // since the last deed, by conversation

  /** @param {import("./chat.js").Chat} chat */
  constructor(chat) {
    this.chat = chat;
  }

  /** Whether this tab runs a tool for a conversation. @param {string} id */
  isRunning(id) {
    return [...this.#running.values()].some(({ conversation }) => conversation === id);
  }

  /** Returns the run of a call in the open conversation; null if it needs none. @param {Message} message @param {number} index @returns {CallRun | null} */
  runOf(message, index) {
    const { current } = this.chat;
    const call = message.calls?.[index];
    const tool = call && HAS_TOOLS ? serverToolOf(current, call) : undefined;
    if (!call || !tool || !awaitsResults(message) || callState(call, message) !== "called") return null;
    const run = (/** @type {boolean} */ always) => {
      if (always) setAlways(tool, true);
      this.#rounds.delete(current.id);
      this.#runAll(current, message.id, index);
    };
    const where = `${tool.name}, a tool of ${tool.server}`;
    if (this.#running.has(call)) return { state: "running", text: `Running ${where}`, run };
    const interrupted = call.startedAt && `The run of ${tool.name} was interrupted, or is in another tab. ${MAYBE}`;
    const text = call.problem ?? interrupted;
    if (text) return { state: "failed", text, run };
    const isHeld = runsAlways(tool) && (this.#rounds.get(current.id) ?? 0) >= MAX_ROUNDS;
    return { state: "ready", text: isHeld ? `Tools have run ${MAX_ROUNDS} times without you. Go on?` : where, run };
  }

  /** Runs the tools that always run, after an answer with calls has ended in this tab. @param {Conversation} conversation @param {Message[]} messages */
  ended(conversation, messages) {
    const { id } = conversation;
    const [message, ...others] = messages;
    const isFirst = conversation.messages.find((one) => one.id === message.parent)?.role === "user";
    if (isFirst) this.#rounds.delete(id);
    if (others.length || message.state !== "done" || !awaitsResults(message)) return;
    const rounds = this.#rounds.get(id) ?? 0;
    if (rounds >= MAX_ROUNDS) return;
    this.#rounds.set(id, rounds + 1);
    this.#runAll(conversation, message.id);
  }

  /** Cancels the runs of a conversation; returns whether there were any. @param {string} id */
  stop(id) {
    const runs = [...this.#running.values()].filter(({ conversation }) => conversation === id);
    for (const { stop } of runs) stop.abort();
    return runs.length > 0;
  }

  /**
   * Runs calls one after another, since one may need what another did: the chosen one, and all that always run. When no
   * result is missing, the conversation goes on.
   * @param {Conversation} conversation @param {string} id of the answer @param {number} [chosen]
   */
  async #runAll(conversation, id, chosen) {
    const { calls = [] } = this.#find(conversation, id) ?? {};
    const always = calls.flatMap((call, i) => {
      const tool = serverToolOf(conversation, call);
      return tool && i !== chosen && !call.startedAt && runsAlways(tool) ? [i] : [];
    });
    for (const i of chosen === undefined ? always : [chosen, ...always])
      if (!(await this.#exclusively(`${id}.${i}`, () => this.#run(conversation, id, i))))
        return this.chat.takeBack(conversation.id);
    const message = this.#find(conversation, id);
    if (!message || awaitsResults(message) || this.chat.last(conversation) !== message) return;
    if (message.calls?.some(({ result }) => result !== undefined)) this.chat.branches.answer(conversation, message);
  }

  /** @param {Conversation} conversation @param {string} id */
  #find({ id: conversation }, id) {
    return this.chat.store.get(conversation)?.messages.find((message) => message.id === id);
  }

  /**
   * Runs the tool of a call, unless the call has a result. Returns whether it has one.
   * @param {Conversation} conversation @param {string} id @param {number} index
   */
  async #run(conversation, id, index) {
    const { store } = this.chat;
    const message = this.#find(conversation, id);
    const call = message?.calls?.[index];
    const tool = call && serverToolOf(conversation, call);
    if (!message || !tool || this.#running.has(call)) return false;
    if (callState(call, message) !== "called") return true;
    const stop = new AbortController();
    this.#running.set(call, { conversation: conversation.id, stop });
    store.ownMessages.add(id);
    delete call.problem;
    call.startedAt = Date.now();
    this.#show(conversation, message, `Running ${tool.name}`);
    await store.save(conversation, message); // a page that is opened again must find that the tool was started
    try {
      call.result = await resultOf(tool, call.arguments, stop.signal);
      delete call.startedAt;
    } catch (error) {
      const reason = error instanceof ApiError ? errorText(error) : `The server cannot be reached. ${MAYBE}`;
      call.problem = stop.signal.aborted ? `Stopped. ${MAYBE}` : reason;
      if (error instanceof ApiError && error.status === 401) askKey(reason);
    }
    this.#running.delete(call);
    if (!message.calls?.some((one) => this.#running.has(one))) store.ownMessages.delete(id);
    store.save(conversation, message);
    this.#show(conversation, message, call.problem ?? "");
    return call.result !== undefined;
  }

  /** @param {Conversation} conversation @param {Message} message @param {string} status */
  #show(conversation, message, status) {
    this.chat.thread.answer(message)?.show(message);
    this.chat.show();
    if (conversation === this.chat.current && status) setStatus(status);
  }

  /** Works under a lock of all tabs; returns false if another tab has it. @param {string} name @param {() => Promise<boolean>} work */
  #exclusively(name, work) {
    if (!navigator.locks) return work(); // plain http
    return navigator.locks.request(`carousel.tool.${name}`, { ifAvailable: true }, (lock) => {
      if (lock) return work();
      toast("Another tab is running this tool.");
      return false;
    });
  }
}

/**
 * Returns the result of a tool for the model, which is also the reason why it failed.
 * @param {ServerTool} tool @param {string} text of the arguments @param {AbortSignal} signal
 */
async function resultOf({ server, name }, text, signal) {
  let given;
  try {
    given = JSON.parse(text || "{}");
  } catch {
    // Below, as another value that is not an object.
  }
  if (typeof given !== "object" || !given || Array.isArray(given)) return "Error: the arguments are not a JSON object.";
  const { content, is_error: isError } = await callServerTool({ server, name, arguments: given }, signal);
  return isError && !/^\W*error/i.test(content) ? `Error: ${content}` : content;
}
