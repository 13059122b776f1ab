// List of conversations and, on a phone, its drawer. The rows are a template of the list's state.
import { repeat } from "../vendor/lit/directives/repeat.js";
import { html, nothing, render } from "../vendor/lit/lit-html.js";
import { byId, h } from "./dom.js";
import { icon } from "./templates.js";
import { openMenu } from "./menu.js";
import { hitPattern, SearchIndex } from "./search.js";
import { setUpSidebarWidth } from "./sidebar_width.js";

/** @import { Conversation } from "./types.js" */

/**
 * @typedef {{ rename(id: string, title: string): void, pin(id: string, pinned: boolean): void, remove(id: string): void,
 *   exportAs(id: string, form: "md" | "json"): void, create(): void, opened(): void,
 *   reveal(id: string, message: string, query: string): void }} Actions
 * @typedef {{ list: Conversation[], current: string, running: Set<string>, unread: Set<string>, warm: Map<string, string>,
 *   query: string, renaming: string }} View
 */

const DRAWER = "(max-width: 820px)"; // as in shell.css
const FOUND_AT_ONCE = 60; // rows of a search that are drawn with each key; more than a screen has

export class Sidebar {
  index = new SearchIndex();
  #view = /** @type {View} */ ({
    list: [],
    current: "",
    running: new Set(),
    unread: new Set(),
    warm: new Map(),
    query: "",
    renaming: "",
  });
  #limit = FOUND_AT_ONCE;

  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.app = byId("app");
    this.node = byId("sidebar");
    this.all = this.items = byId("conversations");
    this.found = h("ol", { id: "conversations" }); // in its place during a search, so that its rows stay as they are
    this.search = byId("search", HTMLInputElement);
    this.search.addEventListener("focus", () => this.index.prepare(this.#view.list));
    this.search.addEventListener("input", () => {
      this.#limit = FOUND_AT_ONCE;
      this.#draw();
    });
    this.search.addEventListener("keydown", (event) => this.#searchKey(event));
    for (const items of [this.all, this.found]) {
      items.addEventListener("click", (event) => this.#click(event));
      items.addEventListener("keydown", (event) => this.#titleKey(event));
      items.addEventListener("focusout", ({ target }) => this.#endRenaming(target, true));
    }
    setUpSidebarWidth(byId("sidebar-width"));
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

  /** @param {Pick<View, "list" | "current" | "running" | "unread" | "warm">} view */
  show(view) {
    view.list.sort((a, b) => Number(b.pinned ?? false) - Number(a.pinned ?? false));
    Object.assign(this.#view, view);
    if (!this.#view.renaming) this.#draw(); // moving a row would take the focus from the title
  }

  /** Conversations whose rows are in view. */
  get inView() {
    if (!this.items.checkVisibility({ visibilityProperty: true })) return []; // as in a closed drawer
    const rows = /** @type {HTMLElement[]} */ ([...this.items.querySelectorAll("[data-id]")]);
    const shown = rows.filter((row) => {
      const { top, bottom } = row.getBoundingClientRect();
      return bottom > 0 && top < innerHeight;
    });
    const ids = new Set(shown.map((row) => row.dataset.id));
    return this.#view.list.filter(({ id }) => ids.has(id));
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
    if (open) this.actions.opened();
  }

  focusSearch() {
    if (matchMedia(DRAWER).matches) this.drawer(true);
    this.search.focus();
    this.search.select();
  }

  #draw() {
    const { list } = this.#view;
    const query = (this.#view.query = this.search.value.trim());
    const found = this.index.find(list, query);
    const items = query ? this.found : this.all;
    if (items !== this.items) this.items.replaceWith(items);
    this.items = items;
    render(query ? results(found, this.#limit, this.index, this.#view) : rows(this.#view), items);
    const none = byId("conversations-none");
    none.hidden = found.length > 0;
    none.textContent = list.length ? "Nothing found." : "Your conversations will be listed here.";
  }

  /** Opens the menu of a row, or the message that an excerpt is of, or shows the other rows. @param {MouseEvent} event */
  #click(event) {
    const place = /** @type {Element} */ (event.target);
    const { list, query } = this.#view;
    if (place.closest(".rows-more")) return this.#showAll();
    const conversation = list.find(({ id }) => id === place.closest("li")?.dataset.id);
    const button = place.closest(".row-more");
    if (!conversation) return;
    const { id } = conversation;
    if (button instanceof HTMLElement)
      return openMenu(button, [
        { label: "Rename", icon: "edit", run: () => this.#rename(id) },
        ...this.menuItems(conversation),
      ]);
    const excerpt = query && place.closest("a") ? this.index.excerpt(conversation, query) : null;
    if (!excerpt || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.actions.reveal(id, excerpt.message, query);
  }

  #showAll() {
    const next = this.#limit;
    this.#limit = Infinity;
    this.#draw();
    this.items.querySelectorAll("a")[next]?.focus(); // the pressed button is gone
  }

  /** Returns the entries of a conversation's menus. @param {Conversation} conversation */
  menuItems({ id, pinned }) {
    return [
      { label: pinned ? "Unpin" : "Pin", icon: "pin", run: () => this.actions.pin(id, !pinned) },
      { label: "Export as Markdown", icon: "download", run: () => this.actions.exportAs(id, "md") },
      { label: "Export as JSON", icon: "download", run: () => this.actions.exportAs(id, "json") },
      { label: "Delete", icon: "trash", danger: true, run: () => this.actions.remove(id) },
    ];
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

/** Returns the template of the whole list. @param {View} view */
const rows = (view) =>
  repeat(
    withHeadings(view.list),
    (entry) => (typeof entry === "string" ? entry : entry.id),
    (entry) => (typeof entry === "string" ? html`<li class="day">${entry}</li>` : row(entry, nothing, view)),
  );

/** Returns the template of what a search found. @param {Conversation[]} found @param {number} limit @param {SearchIndex} index @param {View} view */
function results(found, limit, index, view) {
  const pattern = hitPattern(view.query);
  const excerpt = (/** @type {Conversation} */ one) => excerptLine(index.excerpt(one, view.query, pattern));
  const rest = found.length - limit;
  return html`${repeat(
    found.slice(0, limit),
    ({ id }) => id,
    (conversation) => row(conversation, excerpt(conversation), view),
  )}
  ${rest > 0 ? html`<li><button class="button quiet wide rows-more" type="button">Show ${rest} more</button></li>` : nothing}`;
}

/** Returns the conversations and, before the first of a day, its name. @param {Conversation[]} list pinned ones first */
function withHeadings(list) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  let name = "";
  return list.flatMap((conversation) => {
    const before = name;
    name = conversation.pinned ? "Pinned" : dayName(conversation.updated, midnight);
    return name === before ? [conversation] : [name, conversation];
  });
}

/** @param {Conversation} conversation @param {unknown} excerpt its line @param {View} view */
function row({ id, title }, excerpt, { current, running, unread, warm, renaming }) {
  const isCurrent = id === current;
  const saved = warm.get(id);
  return html`<li class="row" data-id=${id} ?data-current=${isCurrent}>
    ${
      id === renaming
        ? html`<input type="text" aria-label="Title" maxlength="200" .value=${title} />`
        : html`<a class="row-open" href="#/c/${id}" title=${saved ? `${title}\n${saved}` : title} aria-current=${isCurrent ? "page" : nothing}>
              <span class="row-title">${title}</span>${excerpt}</a
            >${running.has(id) ? LIVE : unread.has(id) ? UNREAD : saved ? warmDot(saved) : nothing}${menuButton(`Menu of ${title}`)}`
    }
  </li>`;
}

/** @param {import("./search.js").Excerpt | null} excerpt null if only the title has the words */
const excerptLine = (excerpt) =>
  excerpt &&
  html`<span class="row-excerpt">${excerpt.parts.map((part, i) => (i % 2 ? html`<mark>${part}</mark>` : part))}</span>`;

const LIVE = html`<span class="row-live" role="img" aria-label="answering"></span>`;
const UNREAD = html`<span class="row-live unread" role="img" aria-label="new answer"></span>`;

/** @param {string} text */
const warmDot = (text) => html`<span class="row-live warm" role="img" aria-label=${text}></span>`;

/** @param {string} label */
const menuButton = (label) =>
  html`<button class="icon-button small row-more" type="button" aria-haspopup="menu" aria-label=${label} title=${label}>
    ${icon("more")}
  </button>`;

/** @param {number} time @param {number} midnight start of today */
function dayName(time, midnight) {
  const days = Math.ceil((midnight - time) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days <= 7) return "Last seven days";
  return days <= 31 ? "Last month" : "Older";
}
