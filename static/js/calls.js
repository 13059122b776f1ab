// Tool calls of an answer: a foldable block for each, and fields for the results. Names, arguments and results become text
// nodes only.
import { html, nothing } from "../vendor/lit/lit-html.js";
import { callRun } from "./call_run.js";
import { codeFrame, growCode, highlight } from "./code.js";
import { readDraft, writeDraft } from "./drafts.js";
import { HAS_TOOLS } from "./env.js";
import { JsonPrinter, printJson } from "./print_json.js";
import { button, summary } from "./templates.js";
import { awaitsResults, callState } from "./tools.js";

/** @import { CallRun, Message, MessageActions, ToolCall } from "./types.js" */

class CallView {
  #printer = new JsonPrinter();
  #printed = "";
  #read = 0; // characters of the arguments that are printed
  #isComplete = false;
  #frame = codeFrame("json", "", "Arguments");
  #result = /** @type {HTMLElement | null} */ (null);

  /** @param {string} draft name of the preference that keeps an unsent result */
  constructor(draft) {
    this.draft = draft;
    this.unsent = readDraft(draft);
    this.isAsked = false; // whether the user may write its result
  }

  /** @param {ToolCall} call @param {Message} message @param {CallRun | null} run */
  template(call, message, run) {
    const state = callState(call, message);
    this.isAsked = state === "called" && awaitsResults(message) && (!run || run.state === "failed");
    this.#print(call.arguments, state !== "calling");
    return html`<details class="fold call" data-state=${state} ?open=${state !== "answered"}>
      ${summary(html`<code class="call-name" dir="auto">${call.name}</code><span class="call-state">${state}</span>`)}
      <div class="fold-body">
        ${this.#frame}${call.result === undefined ? nothing : this.#resultFrame(call.result)}${[run ? callRun(run, call.name) : nothing, this.isAsked ? this.#field(call) : nothing]}
      </div>
    </details>`;
  }

  /** @param {string} text @param {boolean} isComplete */
  #print(text, isComplete) {
    if (text.length > this.#read) {
      this.#printed += this.#printer.push(text.slice(this.#read));
      this.#read = text.length;
      growCode(this.#frame, this.#printed);
    }
    if (isComplete && !this.#isComplete) highlight(this.#frame);
    this.#isComplete = isComplete;
  }

  /** @param {ToolCall} call */
  #field({ name }) {
    const onInput = (/** @type {Event} */ { target }) => {
      this.unsent = /** @type {HTMLTextAreaElement} */ (target).value;
      writeDraft(this.draft, this.unsent);
    };
    return html`<label class="field"
      ><span class="field-label">Result</span
      ><textarea class="mono" rows="3" spellcheck="false" aria-label="Result of ${name}" .value=${this.unsent}
        @input=${onInput}></textarea
    ></label>`;
  }

  /** @param {string} result */
  #resultFrame(result) {
    if (!this.#result) {
      this.#result = codeFrame(/^\s*[{[]/.test(result) ? "json" : "text", printJson(result), "Result");
      this.#result.classList.add("wrapped");
      highlight(this.#result);
    }
    return this.#result;
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
  }

  /** Returns the calls of a message: arguments, states, runs, results and fields for those that are missing. @param {Message} message */
  template(message) {
    const { id, calls = [] } = message;
    if (!calls.length) return nothing;
    const list = calls.map((call, i) => {
      const view = (this.#views[i] ??= new CallView(`result.${id}.${i}`));
      return view.template(call, message, this.actions.runOf(message, i));
    });
    return html`<div class="calls">
      <div>${list}</div>
      ${this.#foot(message)}
    </div>`;
  }

  /** Returns the line that sends the results, or goes on with those of tools. @param {Message} message */
  #foot(message) {
    const { calls = [], state } = message;
    const asked = this.#views.filter(({ isAsked }) => isAsked).length;
    const awaited = calls.filter((call) => callState(call, message) === "called").length;
    const isOver = state !== "streaming" && calls.some(({ result }) => result !== undefined);
    if (awaitsResults(message) ? !asked : !isOver) return nothing;
    const note = `${HAS_TOOLS ? "" : "This page runs no tools. "}Write the result that the model should see.`;
    const label = asked > 1 ? "Send results" : asked ? "Send result" : "Go on with the results";
    return html`<div class="results-foot">
      <p class="field-note">${asked ? note : ""}</p>
      ${asked < awaited ? nothing : button(label, ({ target }) => this.#send(/** @type {Element} */ (target)), "primary")}
    </div>`;
  }

  /** @param {Element} pressed */
  #send(pressed) {
    const missing = this.#views.findIndex(({ isAsked, unsent }) => isAsked && !unsent.trim());
    if (missing >= 0) return showField(pressed, missing);
    if (!this.send(this.#views.map(({ isAsked, unsent }) => (isAsked ? unsent : undefined)))) return;
    for (const { draft } of this.#views) writeDraft(draft, "");
  }
}

/** Unfolds a call whose result is missing, and moves the focus to its field. @param {Element} button @param {number} i */
function showField(button, i) {
  const call = button.closest(".calls")?.querySelectorAll("details")[i];
  if (call) call.open = true;
  call?.querySelector("textarea")?.focus();
}
