// List of conversations and, on a phone, its drawer. The rows are a template of the list's state.
import { cache } from "../vendor/lit/directives/cache.js";
import { repeat } from "../vendor/lit/directives/repeat.js";
import { html, nothing, render } from "../vendor/lit/lit-html.js";
import { byId } from "./dom.js";
import { iconTemplate } from "./icon_template.js";
import { openMenu } from "./menu.js";
import { SearchIndex } from "./search.js";

/** @import { Conversation } from "./types.js" */

/**
 * @typedef {{ rename(id: string, title: string): void, remove(id: string): void,
 *   exportAs(id: string, form: "md" | "json"): void, create(): void }} Actions
 * @typedef {{ list: Conversation[], current: string, running: Set<string>, query: string, renaming: string,
 *   found: Set<string> }} View
 */

const DRAWER = "(max-width: 820px)"; // as in shell.css

export class Sidebar {
  #view = /** @type {View} */ ({
    list: [],
    current: "",
    running: new Set(),
    query: "",
    renaming: "",
    found: new Set(),
  });
  index = new SearchIndex();

  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.app = byId("app");
    this.node = byId("sidebar");
    this.items = byId("conversations");
    this.search = byId("search", HTMLInputElement);
    this.search.addEventListener("focus", () => this.index.prepare(this.#view.list));
    this.search.addEventListener("input", () => this.#draw());
    this.search.addEventListener("keydown", (event) => this.#searchKey(event));
    this.items.addEventListener("click", ({ target }) => {
      const button = /** @type {Element} */ (target).closest(".row-more");
      if (button instanceof HTMLElement) this.#menu(button, button.parentElement?.dataset.id ?? "");
    });
    this.items.addEventListener("keydown", (event) => this.#titleKey(event));
    this.items.addEventListener("focusout", ({ target }) => this.#endRenaming(target, true));
    byId("new").addEventListener("click", () => this.actions.create());
    byId("drawer-open").addEventListener("click", () => this.drawer(true));
    byId("drawer-close").addEventListener("click", () => this.drawer(false));
    byId("scrim").addEventListener("click", () => this.drawer(false));
    matchMedia(DRAWER).addEventListener("change", ({ matches }) => matches || this.drawer(false));
    this.node.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.isDrawer) return;
      event.stopPropagation();
      this.drawer(false);
    });
  }

  /** @param {Conversation[]} list @param {string} current @param {Set<string>} running */
  show(list, current, running) {
    Object.assign(this.#view, { list, current, running });
    if (!this.#view.renaming) this.#draw(); // moving a row would take the focus from the title
  }

  get isDrawer() {
    return this.app.hasAttribute("data-drawer");
  }

  /** @param {boolean} open */
  drawer(open) {
    if (open === this.isDrawer) return;
    this.app.toggleAttribute("data-drawer", open);
    byId("scrim").hidden = !open;
    byId("main").inert = open;
    byId("drawer-open").setAttribute("aria-expanded", String(open));
    (open ? byId("drawer-close") : byId("drawer-open")).focus();
  }

  focusSearch() {
    if (matchMedia(DRAWER).matches) this.drawer(true);
    this.search.focus();
    this.search.select();
  }

  #draw() {
    const query = this.search.value;
    const found = this.index.find(this.#view.list, query);
    Object.assign(this.#view, { query, found: new Set(found.map(({ id }) => id)) });
    render(rows(this.#view), this.items);
    const none = byId("conversations-none");
    none.hidden = found.length > 0;
    none.textContent = this.#view.list.length ? "Nothing found." : "Your conversations will be listed here.";
  }

  /** @param {HTMLElement} button @param {string} id */
  #menu(button, id) {
    openMenu(button, [
      { label: "Rename", icon: "edit", run: () => this.#rename(id) },
      { label: "Export as Markdown", icon: "download", run: () => this.actions.exportAs(id, "md") },
      { label: "Export as JSON", icon: "download", run: () => this.actions.exportAs(id, "json") },
      { label: "Delete", icon: "trash", danger: true, run: () => this.actions.remove(id) },
    ]);
  }

  /** @param {string} id */
  #rename(id) {
    this.#view.renaming = id;
    this.#draw();
    const input = this.items.querySelector("input");
    input?.focus();
    input?.select();
  }

  /** @param {KeyboardEvent} event */
  #titleKey(event) {
    const { key, target } = event;
    if (event.isComposing || (key !== "Enter" && key !== "Escape") || !this.#view.renaming) return;
    event.stopPropagation();
    this.#endRenaming(target, key === "Enter");
  }

  /** @param {EventTarget | null} input @param {boolean} keep */
  #endRenaming(input, keep) {
    const id = this.#view.renaming;
    if (!id || !(input instanceof HTMLInputElement)) return; // a field also loses the focus when it is removed
    this.#view.renaming = "";
    const title = input.value.trim();
    if (keep && title) this.actions.rename(id, title);
    this.#draw();
    /** @type {HTMLElement | null} */ (this.items.querySelector(`[data-id="${id}"] a`))?.focus();
  }

  /** @param {KeyboardEvent} event */
  #searchKey(event) {
    if (event.key === "Escape" && this.search.value) {
      event.stopPropagation();
      this.search.value = "";
      this.#draw();
    } else if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault(); // the focus moves to the message box, where the key would insert a new line
      /** @type {HTMLElement | null} */ (this.items.querySelector(".row-open"))?.click();
    } else if (event.key === "ArrowDown") {
      event.preventDefault();
      /** @type {HTMLElement | null} */ (this.items.querySelector(".row-open"))?.focus();
    }
  }
}

/** Returns the template of the list. A row keeps its element, wherever it moves and while a search hides it. @param {View} view */
const rows = (view) =>
  repeat(
    withHeadings(view.list),
    (entry) => (typeof entry === "string" ? entry : entry.id),
    (entry) => cache(typeof entry === "string" ? heading(entry, view) : row(entry, view)),
  );

/** Returns the conversations and, before the first of a day, its name. @param {Conversation[]} list newest first */
function withHeadings(list) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  let name = "";
  return list.flatMap((conversation) => {
    const before = name;
    name = dayName(conversation.updated, midnight);
    return name === before ? [conversation] : [name, conversation];
  });
}

/** @param {string} name @param {View} view */
const heading = (name, { query }) => (query ? nothing : html`<li class="day">${name}</li>`);

/** @param {Conversation} conversation @param {View} view */
function row({ id, title }, { current, running, renaming, found }) {
  if (!found.has(id)) return nothing;
  const isCurrent = id === current;
  return html`<li class="row" data-id=${id} ?data-current=${isCurrent}>
    ${
      id === renaming
        ? html`<input type="text" aria-label="Title" maxlength="200" .value=${title} />`
        : html`<a class="row-open" href="#/c/${id}" title=${title} aria-current=${isCurrent ? "page" : nothing}
              >${title}</a
            >${running.has(id) ? LIVE : nothing}${menuButton(`Menu of ${title}`)}`
    }
  </li>`;
}

const LIVE = html`<span class="row-live" role="img" aria-label="answering"></span>`;

/** @param {string} label */
const menuButton = (label) =>
  html`<button class="icon-button small row-more" type="button" aria-haspopup="menu" aria-label=${label} title=${label}>
    ${iconTemplate("more")}
  </button>`;

/** @param {number} time @param {number} midnight start of today */
function dayName(time, midnight) {
  const days = Math.ceil((midnight - time) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days <= 7) return "Last seven days";
  return days <= 31 ? "Last month" : "Older";
}
