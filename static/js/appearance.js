// Choice of theme. js/theme.js applies the stored one before first paint.
import { openMenu } from "./menu.js";
import { readPref, writePref } from "./prefs.js";

const CHOICES = /** @type {Record<string, string>} */ ({ "": "As the system", light: "Light", dark: "Dark" });

/** @param {HTMLElement} button */
export function setUpTheme(button) {
  button.setAttribute("aria-haspopup", "menu");
  label(button);
  button.addEventListener("click", () => {
    const now = readPref("theme", "");
    openMenu(
      button,
      Object.entries(CHOICES).map(([theme, name]) => ({
        label: name,
        checked: theme === now,
        run: () => choose(theme, button),
      })),
    );
  });
  addEventListener("storage", (event) => {
    if (event.key === "carousel.theme") apply(readPref("theme", ""), button);
  });
}

/** @param {string} theme @param {HTMLElement} button */
function choose(theme, button) {
  writePref("theme", theme);
  apply(theme, button);
}

/** @param {string} theme @param {HTMLElement} button */
function apply(theme, button) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  label(button);
}

/** @param {HTMLElement} button */
function label(button) {
  const theme = document.documentElement.dataset.theme ?? "";
  button.setAttribute("aria-label", `Theme: ${CHOICES[theme]}`);
  button.title = `Theme: ${CHOICES[theme].toLowerCase()}`;
}
