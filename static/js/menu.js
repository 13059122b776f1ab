// Small menus under a button: the popover provides the top layer and closing, this module position, arrow keys and focus.
import { h, icon } from "./dom.js";

/**
 * @param {HTMLElement} button
 * @param {{ label: string, icon?: string, danger?: boolean, checked?: boolean, run: () => void }[]} items
 */
export function openMenu(button, items) {
  const menu = h("div", { class: "menu", popover: "auto", role: "menu" });
  for (const item of items) {
    const node = h(
      "button",
      {
        type: "button",
        class: item.danger ? "danger" : null,
        tabindex: "-1",
        role: item.checked === undefined ? "menuitem" : "menuitemradio",
        "aria-checked": item.checked,
      },
      icon(item.checked ? "check" : (item.icon ?? "none")),
      item.label,
    );
    node.addEventListener("click", () => {
      menu.hidePopover();
      item.run();
    });
    menu.append(node);
  }
  const buttons = /** @type {HTMLElement[]} */ ([...menu.children]);
  menu.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const to = /** @type {Record<string, number>} */ ({ ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 })[
      event.key
    ];
    if (event.key === "Tab") menu.hidePopover();
    if (event.key === "Escape") event.stopPropagation(); // closes the menu, not the drawer around it
    if (to === undefined) return;
    event.preventDefault();
    buttons.at(to >= buttons.length ? 0 : to)?.focus();
  });
  menu.addEventListener("toggle", (event) => {
    const open = /** @type {ToggleEvent} */ (event).newState === "open";
    button.setAttribute("aria-expanded", String(open));
    if (open) return;
    if (menu.contains(document.activeElement) || document.activeElement === document.body) button.focus();
    menu.remove();
  });
  // Placed in the landmark of its button, since inside an open dialog the rest of the page is inert.
  (button.closest("dialog, main, aside, header") ?? document.body).append(menu);
  menu.showPopover();
  place(menu, button);
  buttons[0]?.focus();
}

/**
 * Places the menu below the button if there is space, otherwise above; always inside the window.
 * @param {HTMLElement} menu @param {HTMLElement} button
 */
function place(menu, button) {
  const at = button.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = menu;
  const left = at.left + width > innerWidth - 8 ? at.right - width : at.left;
  const top = at.bottom + height > innerHeight - 8 ? at.top - height - 4 : at.bottom + 4;
  menu.style.setProperty("left", `${Math.max(8, left)}px`);
  menu.style.setProperty("top", `${Math.max(8, top)}px`);
}
