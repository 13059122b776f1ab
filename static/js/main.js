// Entry point of the chat page: creates the parts and connects them.
import { ApiError, getTimeline, listModels } from "./api.js";
import { setUpTheme } from "./appearance.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { ContextNote } from "./context_note.js";
import { defaultSettings, differences } from "./defaults.js";
import { byId, h } from "./dom.js";
import { MODEL, TITLE, url } from "./env.js";
import { Files } from "./files.js";
import { setUpFormulaCopy } from "./formula_copy.js";
import { untilReady } from "./health.js";
import { setUpHelp, showHelp } from "./help_dialog.js";
import { askKey, setUpKey } from "./key_dialog.js";
import { setUpKeys } from "./keys.js";
import { Library } from "./library.js";
import { openMenu } from "./menu.js";
import { giveTitle } from "./model_title.js";
import { announce, setStatus, toast } from "./notices.js";
import { Queue } from "./queue.js";
import { Answers } from "./answers.js";
import { Ready } from "./ready.js";
import { hitPattern } from "./search.js";
import { SettingsSheet } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Store } from "./store.js";
import { Sync } from "./sync.js";
import { Thread } from "./thread.js";
import { Dictation } from "./voice.js";
import { setUpTransfer } from "./transfer.js";
import { Warm } from "./warm.js";

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
  ended: (conversation, messages) => ended(conversation, messages),
  announce: (text, conversation) => conversation === chat.current && setStatus(text),
  onError: (error) => error.status === 401 && askKey(error.message),
});
const thread = new Thread({
  send: (text) => chat.send(text),
  regenerate: (id, count) => chat.branches.regenerate(id, count),
  resume: (id) => chat.branches.resume(id),
  goOnFrom: (id, text) => chat.branches.goOnFrom(id, text),
  rewrite: (id, text) => chat.branches.rewrite(id, text),
  choose: (id, step) => chat.choose(id, step),
  replay: (id) => chat.branches.replay(id),
  find: (id) => chat.find(id),
  removeBranch: (id) => chat.branches.removeBranch(id),
  runOf: (message, index) => chat.tools.runOf(message, index),
  sendResults: (id, results) => chat.sendResults(id, results),
  leaveOut: (id) => chat.leaveOut(id),
  startOver: () => chat.startOver(),
  edit: (id, text) => chat.branches.edit(id, text),
  retryNow: (id) => answers.now(id),
  askKey: () => askKey(),
  timeline: getTimeline,
});
const files = new Files(() => {
  composer.changed();
  contextNote.show();
});
const composer = new Composer(files, {
  send: (text, files) => chat.send(text, files),
  queue: (text) => chat.queue(text),
  stop: () => chat.control.stop(),
  pause: () => chat.control.pause(),
  later: () => chat.control.later(),
  editLast: () => chat.editLast(),
});
const sidebar = new Sidebar({
  create,
  opened: () => warm.ask(),
  rename: (id, title) => library.rename(id, title),
  pin(id, pinned) {
    store.change(id, (conversation) => (conversation.pinned = pinned));
    show();
  },
  reveal(id, message, query) {
    awaited = { message, query };
    if (id === chat.current.id) route();
    else location.hash = `#/c/${id}`;
  },
  remove: (id) => library.remove(id),
  exportAs: (id, form) => library.exportAs(id, form),
});
const warm = new Warm({ rows: () => sidebar.inView, changed: () => show() });
const queue = new Queue((id) => {
  chat.takeBack(id);
  composer.focus();
});
const ready = new Ready({
  shown: () => chat.current.id,
  changed: () => show(),
  open: (id) => (location.hash = `#/c/${id}`),
});
/** @type {Chat} */
const chat = new Chat({ store, answers, thread, composer, queue, ready, show: () => show() });
const contextNote = new ContextNote(chat, composer, files);
new Dictation(composer, () => chat.control.stop());
const library = new Library({ store, answers, chat });
const sync = new Sync(store, {
  changed: (isOn) =>
    (byId("kept").textContent = isOn
      ? "Conversations are also kept on the server, for your key."
      : "Conversations stay in this browser."),
  warn: (text) => toast(text, { ms: 12_000 }),
});
const settings = new SettingsSheet((apply) => chat.change(apply));

/** Updates everything outside the message column for the open conversation. */
function show() {
  const { current } = chat;
  sidebar.show({
    list: store.list(),
    current: current.id,
    running: answers.running,
    unread: ready.unread,
    warm: warm.texts,
  });
  composer.setBusy(chat.isBusy, chat.control.running);
  byId("title").textContent = current.title;
  byId("more").hidden = !current.messages.length;
  const mark = ready.unread.size ? `(${ready.unread.size}) ` : "";
  document.title = mark + (current.messages.length ? `${current.title} · ${TITLE}` : TITLE);
  const inForce = differences(current, defaultSettings());
  byId("in-force").textContent = inForce || "Settings";
  byId("in-force").hidden = !inForce;
  showModels();
  contextNote.show();
}

/**
 * Announces complete answers to screen readers and sends a queued message.
 * @param {Conversation} conversation @param {Message[]} messages
 */
function ended(conversation, messages) {
  const complete = messages.filter(({ state }) => state === "done");
  if (conversation === chat.current) announce(complete.flatMap((message) => thread.answer(message)?.blockTexts ?? []));
  ready.ended(conversation, messages[0]);
  chat.onAnswerEnd(conversation, messages);
  chat.tools.ended(conversation, messages);
  giveTitle(store, conversation, chat.lowestTier).then(show);
  warm.ask();
}

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

function create() {
  if (location.hash !== "#/") history.pushState(null, "", "#/");
  route();
}

let awaited = /** @type {{ message: string, query: string } | null} */ (null); // hit of the search that is being opened

function route() {
  if (!/^#?$|^#\//.test(location.hash)) return; // the skip link targets an element
  chat.open(/^#\/c\/(\w+)$/.exec(location.hash)?.[1]);
  sidebar.drawer(false);
  composer.focusOnDesktop();
  if (awaited) chat.choose(awaited.message, 0);
  if (awaited) thread.reveal(awaited.message, hitPattern(awaited.query));
  awaited = null;
}

async function loadModels() {
  try {
    const models = await listModels();
    contextNote.lengths = Object.fromEntries(models.map(({ id, max_model_len: length }) => [id, length]));
    const tiers = models[0]?.service_tiers ?? [];
    chat.tier = tiers[0] ?? "priority";
    chat.lowestTier = tiers.at(-1) ?? "flex";
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
setUpKey(() => {
  loadModels();
  sync.start();
  warm.ask();
  const last = chat.tree.path.at(-1);
  if (last?.error?.status === 401) chat.branches.regenerate(last.id);
});
setUpKeys({
  stop: () => chat.control.stop(),
  search: () => sidebar.focusSearch(),
  create,
  settings: () => settings.open(chat.current),
  help: showHelp,
  write: () => composer.focus(),
});
byId("help-button").addEventListener("click", showHelp);
for (const id of ["settings-open", "in-force"]) byId(id).addEventListener("click", () => settings.open(chat.current));
settings.dialog.addEventListener("close", show); // the defaults may be others now
byId("model", HTMLSelectElement).addEventListener("change", ({ currentTarget }) =>
  chat.setModel(/** @type {HTMLSelectElement} */ (currentTarget).value),
);
byId("more").addEventListener("click", () => openMenu(byId("more"), sidebar.menuItems(chat.current)));
addEventListener("popstate", route); // also after a link or a script has changed the hash
addEventListener("beforeprint", () => thread.drawAll());

await store.open();
library.resumeSaved();
route();
untilReady((ready) => {
  composer.setReady(ready);
  if (ready) loadModels();
  if (ready) sync.start();
  if (ready) warm.ask();
});
// Absent on plain http, and in private windows.
navigator.serviceWorker?.register(url("/service_worker.js")).catch(() => {});
document.documentElement.dataset.ready = "";
