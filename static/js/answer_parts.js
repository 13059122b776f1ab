// Parts of an answer: the line of its figures, its menu, and its error with the next actions.
import { html, nothing } from "../vendor/lit/lit-html.js";
import { MODEL } from "./env.js";
import { ending, errorText, figures, isUnfinished } from "./labels.js";
import { button, icon } from "./templates.js";
import { canRead, isReading, readAloud, stopReading } from "./voice.js";

/** @import { Message, MessageActions, MessageError } from "./types.js" */

/** @param {Message} message */
export function figuresLine(message) {
  const parts = figures(message).map(
    (text, i) => html`<span class=${i && /( tokens?| shared)$/.test(text) ? "secondary" : nothing}>${text}</span>`,
  );
  const notes = [message.model === MODEL ? "" : message.model, ending(message)].filter(Boolean);
  return [...parts, ...notes.map((note) => html`<span class="note">${note}</span>`)];
}

/** @param {Message} message @param {MessageError} error @param {MessageActions} actions */
export function trouble(message, error, actions) {
  const { id } = message;
  const again = isUnfinished(message)
    ? button("Continue", () => actions.resume(id))
    : button("Try again", () => actions.regenerate(id));
  // A retry of a conversation that exceeds the context would fail again.
  const buttons =
    error.code === "context_length_exceeded"
      ? [
          button("Leave out the oldest messages", () => actions.leaveOut(id)),
          button("New conversation", () => actions.startOver()),
        ]
      : [error.status === 401 ? button("Enter key", () => actions.askKey()) : nothing, again];
  const code = [error.status || "", error.code ?? ""].filter(Boolean).join(" ");
  return html`<div class="trouble" role="group" aria-label="Problem">
    ${icon("warn")}
    <div class="trouble-text">${errorText(error)}${code && html`<span class="trouble-code">${code}</span>`}</div>
    <div class="trouble-tools">${buttons}</div>
  </div>`;
}

/** Returns the entries of an answer's menu. @param {import("./messages.js").AnswerView} view */
export function answerMenu(view) {
  const { id, content, seed, run } = view.message;
  const { actions } = view;
  const reading = isReading()
    ? { label: "Stop reading", icon: "stop", run: stopReading }
    : { label: "Read aloud", icon: "speaker", run: () => readAloud(view.blockTexts) };
  return [
    { label: "Edit answer", icon: "edit", run: () => view.edit()?.focus() },
    { label: "Three answers at once", icon: "again", run: () => actions.regenerate(id, 3) },
    ...(seed === undefined || run
      ? []
      : [{ label: "Replay with the present settings", icon: "again", run: () => actions.replay(id) }]),
    ...(canRead && content ? [reading] : []),
    { label: "Delete from here", icon: "trash", danger: true, run: () => actions.removeBranch(id) },
  ];
}
