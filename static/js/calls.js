// Tool calls of an answer: a foldable block for each, and fields for the results. Names, arguments and results become text
// nodes only.
import { html, nothing } from "../vendor/lit/lit-html.js";
import { codeFrame, growCode, highlight } from "./code.js";
import { readDraft, writeDraft } from "./drafts.js";
import { JsonPrinter, printJson } from "./print_json.js";
import { button, summary } from "./templates.js";
import { awaitsResults, callState } from "./tools.js";

/** @import { Message, ToolCall } from "./types.js" */

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
  }

  /** @param {ToolCall} call @param {Message} message */
  template(call, message) {
    const state = callState(call, message);
    const isAsked = state === "called" && awaitsResults(message);
    this.#print(call.arguments, state !== "calling");
    return html`<details class="fold call" data-state=${state} ?open=${state !== "answered"}>
      ${summary(html`<code class="call-name" dir="auto">${call.name}</code><span class="call-state">${state}</span>`)}
      <div class="fold-body">
        ${this.#frame}${call.result === undefined ? nothing : this.#resultFrame(call.result)}${isAsked ? this.#field(call) : nothing}
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

  /** @param {(results: (string | undefined)[]) => boolean} send continues the conversation; returns whether it did */
  constructor(send) {
    this.send = send;
  }

  /** Returns the calls of a message: arguments, states, results and fields for those that are missing. @param {Message} message */
  template(message) {
    const { id, calls = [] } = message;
    if (!calls.length) return nothing;
    const list = calls.map((call, i) => (this.#views[i] ??= new CallView(`result.${id}.${i}`)).template(call, message));
    return html`<div class="calls">
      <div>${list}</div>
      ${awaitsResults(message) ? this.#foot(message) : nothing}
    </div>`;
  }

  /** @param {Message} message */
  #foot(message) {
    const asked = (message.calls ?? []).map((call) => callState(call, message) === "called");
    const send = (/** @type {Event} */ { target }) => {
      const missing = this.#views.findIndex(({ unsent }, i) => asked[i] && !unsent.trim());
      if (missing >= 0) return showField(/** @type {Element} */ (target), missing);
      if (!this.send(this.#views.map(({ unsent }, i) => (asked[i] ? unsent : undefined)))) return;
      for (const { draft } of this.#views) writeDraft(draft, "");
    };
    return html`<div class="results-foot">
      <p class="field-note">This page runs no tools. Write the result that the model should see.</p>
      ${button(asked.filter(Boolean).length > 1 ? "Send results" : "Send result", send, "primary")}
    </div>`;
  }
}

/** Unfolds a call whose result is missing, and moves the focus to its field. @param {Element} button @param {number} i */
function showField(button, i) {
  const call = button.closest(".calls")?.querySelectorAll("details")[i];
  if (call) call.open = true;
  call?.querySelector("textarea")?.focus();
}
