// Entry point of the chat page: creates the parts and connects them.
import { ApiError, getTimeline, listModels } from "./api.js";
import { setUpTheme } from "./appearance.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { byId, h } from "./dom.js";
import { MODEL, TITLE } from "./env.js";
import { refuseFiles } from "./files.js";
import { setUpFormulaCopy } from "./formula_copy.js";
import { untilReady } from "./health.js";
import { setUpHelp, showHelp } from "./help_dialog.js";
import { askKey, setUpKey } from "./key_dialog.js";
import { setUpKeys } from "./keys.js";
import { Library } from "./library.js";
import { openMenu } from "./menu.js";
import { announce, setStatus, toast } from "./notices.js";
import { Queue } from "./queue.js";
import { Answers } from "./answers.js";
import { SettingsSheet } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Store } from "./store.js";
import { Thread } from "./thread.js";
import { setUpTransfer } from "./transfer.js";

/** @import { Conversation, Message } from "./types.js" */

const store = new Store(
  (reason) =>
    toast(`This browser cannot save conversations: ${reason}. They last until this tab closes.`, { ms: 12_000 }),
  (id) => chat.changedElsewhere(id),
);
/** @type {Answers} */
const answers = new Answers(store, {
  viewOf: (message) => thread.answer(message),
  changed: () => show(),
  ended: (conversation, message) => ended(conversation, message),
  announce: (text, conversation) => conversation === chat.current && setStatus(text),
  onError: (error) => error.status === 401 && askKey(error.message),
});
const thread = new Thread({
  send: (text) => chat.send(text),
  regenerate: (id) => chat.regenerate(id),
  resume: (id) => chat.resume(id),
  sendResults: (id, results) => chat.sendResults(id, results),
  leaveOut: (id) => chat.leaveOut(id),
  startOver: () => chat.startOver(),
  edit: (id, text) => chat.edit(id, text),
  retryNow: () => answers.now(chat.current.id),
  askKey: () => askKey(),
  timeline: getTimeline,
});
const composer = new Composer({
  send: (text) => chat.send(text),
  queue: (text) => chat.queue(text),
  stop: () => chat.stop(),
  editLast: () => chat.editLast(),
});
const sidebar = new Sidebar({
  open: (id) => (location.hash = `#/c/${id}`),
  create,
  rename: (id, title) => library.rename(id, title),
  remove: (id) => library.remove(id),
  exportAs: (id, form) => library.exportAs(id, form),
});
const queue = new Queue((id) => {
  chat.takeBack(id);
  composer.focus();
});
/** @type {Chat} */
const chat = new Chat({ store, answers, thread, composer, queue, show: () => show() });
const library = new Library({ store, answers, chat });
const settings = new SettingsSheet((apply) => chat.change(apply));

/** Updates everything outside the message column for the open conversation. */
function show() {
  const { current } = chat;
  sidebar.show(store.list(), current.id, answers.running);
  composer.setBusy(chat.isBusy);
  byId("title").textContent = current.title;
  byId("more").hidden = !current.messages.length;
  document.title = current.messages.length ? `${current.title} · ${TITLE}` : TITLE;
  showModels();
  showContext();
}

/**
 * Announces a complete answer to screen readers and sends a queued message.
 * @param {Conversation} conversation @param {Message} message
 */
function ended(conversation, message) {
  if (conversation === chat.current && message.state === "done") announce(thread.answer(message)?.blockTexts() ?? []);
  chat.onAnswerEnd(conversation, message);
}

let modelLengths = /** @type {Record<string, number | undefined>} */ ({});

function showModels() {
  const select = byId("model", HTMLSelectElement);
  const many = chat.models.length > 1;
  select.hidden = !many;
  byId("model-name").hidden = many;
  byId("model-name").textContent = chat.models[0] ?? MODEL;
  if (!many) return;
  if (select.options.length !== chat.models.length)
    select.replaceChildren(...chat.models.map((id) => h("option", { value: id }, id)));
  select.value = chat.current.model;
}

/** Shows the context use only when the conversation nears the context length. */
function showContext() {
  const used = chat.current.messages.findLast((message) => message.usage)?.usage?.total_tokens ?? 0;
  const share = used / (modelLengths[chat.current.model] ?? Infinity);
  byId("context-note").textContent = share > 0.6 ? `${Math.round(share * 100)} % of the context used` : "";
}

function create() {
  if (location.hash !== "#/") history.pushState(null, "", "#/");
  route();
}

function route() {
  if (!/^#?$|^#\//.test(location.hash)) return; // the skip link targets an element
  chat.open(/^#\/c\/(\w+)$/.exec(location.hash)?.[1]);
  sidebar.drawer(false);
  composer.focusOnDesktop();
}

async function loadModels() {
  try {
    const models = await listModels();
    modelLengths = Object.fromEntries(models.map(({ id, max_model_len: length }) => [id, length]));
    chat.tier = models[0]?.service_tiers?.[0] ?? "priority";
    if (models.length) chat.setModels(models.map(({ id }) => id));
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) askKey(error.message);
    else
      toast(`The list of models could not be read: ${/** @type {Error} */ (error).message}`, {
        action: "Retry",
        run: loadModels,
      });
  }
}

setUpTheme(byId("theme"));
setUpHelp();
setUpTransfer(library);
setUpFormulaCopy();
refuseFiles();
setUpKey(() => {
  loadModels();
  const last = chat.current.messages.at(-1);
  if (last?.error?.status === 401) chat.regenerate(last.id);
});
setUpKeys({
  stop: () => chat.stop(),
  search: () => sidebar.focusSearch(),
  create,
  settings: () => settings.open(chat.current),
  help: showHelp,
  write: () => composer.focus(),
});
byId("help-button").addEventListener("click", showHelp);
byId("settings-open").addEventListener("click", () => settings.open(chat.current));
byId("model", HTMLSelectElement).addEventListener("change", ({ currentTarget }) =>
  chat.setModel(/** @type {HTMLSelectElement} */ (currentTarget).value),
);
byId("more").addEventListener("click", () => {
  const { id } = chat.current;
  openMenu(byId("more"), [
    { label: "Export as Markdown", icon: "download", run: () => library.exportAs(id, "md") },
    { label: "Export as JSON", icon: "download", run: () => library.exportAs(id, "json") },
    { label: "Delete", icon: "trash", danger: true, run: () => library.remove(id) },
  ]);
});
addEventListener("hashchange", route);
addEventListener("popstate", route);
addEventListener("beforeprint", () => thread.drawAll());

await store.open();
library.resumeSaved();
route();
untilReady((ready) => {
  composer.setReady(ready);
  if (ready) loadModels();
});
document.documentElement.dataset.ready = "";
