// List of conversations and, on a phone, its drawer.
import { byId, h, iconButton } from "./dom.js";
import { openMenu } from "./menu.js";
import { SearchIndex } from "./search.js";

/** @import { Conversation } from "./types.js" */

/**
 * @typedef {{ open(id: string): void, rename(id: string, title: string): void, remove(id: string): void,
 *   exportAs(id: string, form: "md" | "json"): void, create(): void }} Actions
 */

const DRAWER = "(max-width: 820px)"; // as in shell.css

export class Sidebar {
  #list = /** @type {Conversation[]} */ ([]);
  #current = "";
  #running = new Set();
  #renaming = false;
  #rows = /** @type {Map<string, Row>} */ (new Map());
  #headings = /** @type {Map<string, HTMLElement>} */ (new Map());
  index = new SearchIndex();

  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.app = byId("app");
    this.node = byId("sidebar");
    this.items = byId("conversations");
    this.search = byId("search", HTMLInputElement);
    this.search.addEventListener("focus", () => this.index.prepare(this.#list));
    this.search.addEventListener("input", () => this.#draw());
    this.search.addEventListener("keydown", (event) => this.#searchKey(event));
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
    this.#list = list;
    this.#current = current;
    this.#running = running;
    if (!this.#renaming) this.#draw();
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
    const found = this.index.find(this.#list, this.search.value);
    const midnight = new Date().setHours(0, 0, 0, 0);
    let day = "";
    const nodes = [];
    for (const conversation of found) {
      const name = dayName(conversation.updated, midnight);
      if (name !== day && !this.search.value) nodes.push(this.#heading((day = name)));
      nodes.push(this.#row(conversation));
    }
    arrange(this.items, nodes);
    this.#forget();
    const none = byId("conversations-none");
    none.hidden = found.length > 0;
    none.textContent = this.#list.length ? "Nothing found." : "Your conversations will be listed here.";
  }

  /** @param {string} name */
  #heading(name) {
    let node = this.#headings.get(name);
    if (!node) this.#headings.set(name, (node = h("li", { class: "day" }, name)));
    return node;
  }

  /** Returns the row of a conversation, created once and updated in place. @param {Conversation} conversation */
  #row({ id, title }) {
    let row = this.#rows.get(id);
    if (!row) this.#rows.set(id, (row = new Row(id, (button) => this.#menu(button, id))));
    row.show(title, id === this.#current, this.#running.has(id));
    return row.node;
  }

  /** Drops the rows of deleted conversations. */
  #forget() {
    if (this.#rows.size <= this.#list.length) return;
    const ids = new Set(this.#list.map(({ id }) => id));
    for (const id of this.#rows.keys()) if (!ids.has(id)) this.#rows.delete(id);
  }

  /** @param {HTMLElement} button @param {string} id */
  #menu(button, id) {
    openMenu(button, [
      { label: "Rename", icon: "edit", run: () => this.rename(id) },
      { label: "Export as Markdown", icon: "download", run: () => this.actions.exportAs(id, "md") },
      { label: "Export as JSON", icon: "download", run: () => this.actions.exportAs(id, "json") },
      { label: "Delete", icon: "trash", danger: true, run: () => this.actions.remove(id) },
    ]);
  }

  /** @param {string} id */
  rename(id) {
    const row = this.items.querySelector(`[data-id="${id}"]`);
    const conversation = this.#list.find((one) => one.id === id);
    if (!row || !conversation) return;
    const input = h("input", { type: "text", "aria-label": "Title", maxlength: "200" });
    input.value = conversation.title;
    this.#renaming = true;
    let open = true;
    const close = (/** @type {boolean} */ keep) => {
      if (!open) return; // Enter also blurs the field
      open = this.#renaming = false;
      this.#rows.delete(id); // the input replaces it
      if (keep && input.value.trim()) this.actions.rename(id, input.value.trim());
      this.#draw();
      /** @type {HTMLElement | null} */ (this.items.querySelector(`[data-id="${id}"] a`))?.focus();
    };
    input.addEventListener("blur", () => close(true));
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") close(true);
      if (event.key === "Escape") close(false);
      if (event.key === "Enter" || event.key === "Escape") event.stopPropagation();
    });
    row.replaceChildren(input);
    input.focus();
    input.select();
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

/** Row of one conversation. */
class Row {
  #title = "";
  #current = /** @type {boolean | null} */ (null);
  #running = false;

  /** @param {string} id @param {(button: HTMLElement) => void} openMenu */
  constructor(id, openMenu) {
    this.link = h("a", { class: "row-open", href: `#/c/${id}` });
    this.live = h("span", { class: "row-live", role: "img", "aria-label": "answering" });
    this.more = iconButton("more", "", () => openMenu(this.more), { "aria-haspopup": "menu" });
    this.more.classList.add("row-more");
    this.node = h("li", { class: "row", "data-id": id }, this.link, this.more);
  }

  /** @param {string} title @param {boolean} current @param {boolean} running */
  show(title, current, running) {
    if (title !== this.#title) this.#name(title);
    if (current !== this.#current) this.#mark(current);
    if (running !== this.#running) running ? this.more.before(this.live) : this.live.remove();
    this.#running = running;
  }

  /** @param {string} title */
  #name(title) {
    this.#title = this.link.textContent = this.link.title = title;
    this.more.title = `Menu of ${title}`;
    this.more.setAttribute("aria-label", this.more.title);
  }

  /** @param {boolean} current */
  #mark(current) {
    this.#current = current;
    this.node.toggleAttribute("data-current", current);
    if (current) this.link.setAttribute("aria-current", "page");
    else this.link.removeAttribute("aria-current");
  }
}

/**
 * Sets the children of `parent` to these nodes and moves only those out of place.
 * @param {HTMLElement} parent @param {Node[]} nodes
 */
function arrange(parent, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...parent.childNodes]) if (!wanted.has(child)) child.remove();
  let at = parent.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
}

/** @param {number} time @param {number} midnight start of today */
function dayName(time, midnight) {
  const days = Math.ceil((midnight - time) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days <= 7) return "Last seven days";
  return days <= 31 ? "Last month" : "Older";
}
