// DOM of the tool calls of an answer: a foldable block for each, and fields for the results. Names, arguments and results
// become text nodes only.
import { nothing, render } from "../vendor/lit/lit-html.js";
import { codeFrame, growCode, highlight } from "./code.js";
import { h, icon } from "./dom.js";
import { callRun } from "./call_run.js";
import { readDraft, writeDraft } from "./drafts.js";
import { HAS_TOOLS } from "./env.js";
import { JsonPrinter, printJson } from "./print_json.js";
import { awaitsResults, callState } from "./tools.js";

/** @import { CallRun, Message, MessageActions, ToolCall } from "./types.js" */

/** Creates the summary line of a foldable block. @param {...(Node | string)} children */
export const foldSummary = (...children) => h("summary", {}, icon("chevron"), ...children);

class CallView {
  #state = "";
  #printer = new JsonPrinter();
  #printed = "";
  #read = 0; // characters of the arguments that are printed

  /** @param {ToolCall} call @param {string} draft name of the preference that keeps an unsent result */
  constructor(call, draft) {
    this.draft = draft;
    this.state = h("span", { class: "call-state" });
    this.frame = codeFrame("json", "", "Arguments");
    this.area = h("textarea", {
      class: "mono",
      rows: "3",
      spellcheck: "false",
      "aria-label": `Result of ${call.name}`,
    });
    this.area.value = readDraft(draft);
    this.area.addEventListener("input", () => writeDraft(draft, this.area.value));
    this.field = h("label", { class: "field" }, h("span", { class: "field-label" }, "Result"), this.area);
    this.run = h("div");
    this.node = h(
      "details",
      { class: "fold call" },
      foldSummary(h("code", { class: "call-name", dir: "auto" }, call.name), this.state),
      h("div", { class: "fold-body" }, this.frame, this.run, this.field),
    );
  }

  /** @param {ToolCall} call @param {Message} message @param {CallRun | null} run */
  show(call, message, run) {
    this.#print(call.arguments);
    const state = callState(call, message);
    this.#showRun(run, call.name);
    this.field.hidden = state !== "called" || !awaitsResults(message) || Boolean(run && run.state !== "failed");
    if (state === this.#state) return;
    this.#state = this.node.dataset.state = state;
    this.state.textContent = state;
    this.node.open = state !== "answered";
    if (state !== "calling") highlight(this.frame);
    if (call.result !== undefined) this.#showResult(call.result);
  }

  /** @param {CallRun | null} run @param {string} name */
  #showRun(run, name) {
    const hadFocus = this.run.contains(document.activeElement);
    render(run ? callRun(run, name) : nothing, this.run);
    if (hadFocus && !this.run.contains(document.activeElement)) this.node.querySelector("summary")?.focus();
  }

  /** @param {string} text */
  #print(text) {
    if (text.length === this.#read) return;
    this.#printed += this.#printer.push(text.slice(this.#read));
    this.#read = text.length;
    growCode(this.frame, this.#printed);
  }

  /** @param {string} result */
  #showResult(result) {
    const printed = printJson(result);
    const frame = codeFrame(/^\s*[{[]/.test(result) ? "json" : "text", printed, "Result");
    frame.classList.add("wrapped");
    this.field.replaceWith(frame);
    highlight(frame);
  }

  /** The typed result; undefined if the call needs none. */
  get result() {
    return this.field.hidden ? undefined : this.area.value;
  }

  /** Unfolds the block and moves the focus to the field of its result. */
  ask() {
    this.node.open = true;
    this.area.focus();
  }
}

export class CallList {
  #views = /** @type {CallView[]} */ ([]);

  /**
   * @param {MessageActions} actions
   * @param {(results: (string | undefined)[]) => boolean} send continues the conversation; returns whether it did
   */
  constructor(actions, send) {
    this.actions = actions;
    this.send = send;
    this.note = h("p", { class: "field-note" });
    this.list = h("div");
    this.button = h("button", { class: "button small primary", type: "button", onclick: () => this.#send() });
    this.foot = h("div", { class: "results-foot" }, this.note, this.button);
    this.node = h("div", { class: "calls", hidden: true }, this.list, this.foot);
  }

  clear() {
    this.#views = [];
    this.list.replaceChildren();
    this.node.hidden = true;
  }

  /** Shows the calls of a message: new ones, further arguments, states and results. @param {Message} message */
  show(message) {
    const { id, calls = [] } = message;
    this.node.hidden = !calls.length;
    calls.forEach((call, i) => {
      if (!this.#views[i]) {
        this.#views[i] = new CallView(call, `result.${id}.${i}`);
        this.list.append(this.#views[i].node);
      }
      this.#views[i].show(call, message, this.actions.runOf(message, i));
    });
    const asked = this.#views.filter(({ result }) => result !== undefined).length;
    const waits = awaitsResults(message);
    const awaited = calls.filter((call) => callState(call, message) === "called").length;
    this.foot.hidden = waits
      ? !asked
      : message.state === "streaming" || !calls.some(({ result }) => result !== undefined);
    this.note.textContent = waits
      ? `${HAS_TOOLS ? "" : "This page runs no tools. "}Write the result that the model should see.`
      : "";
    this.button.textContent = asked > 1 ? "Send results" : asked ? "Send result" : "Go on with the results";
    this.button.hidden = asked < awaited;
  }

  #send() {
    const missing = this.#views.find((view) => view.result?.trim() === "");
    if (missing) return missing.ask();
    if (!this.send(this.#views.map(({ result }) => result))) return;
    for (const { draft } of this.#views) writeDraft(draft, "");
  }
}
