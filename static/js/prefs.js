// Small preferences in localStorage: theme, defaults, drafts. If the browser forbids storage, they are lost but the page works.

/** @template T @param {string} name @param {T} fallback @returns {T} */
export function readPref(name, fallback) {
  try {
    const text = localStorage.getItem(`carousel.${name}`);
    return text === null ? fallback : JSON.parse(text);
  } catch {
    return fallback;
  }
}

/** @param {string} name @param {unknown} value undefined, null and "" remove it */
export function writePref(name, value) {
  try {
    if (value === undefined || value === null || value === "") localStorage.removeItem(`carousel.${name}`);
    else localStorage.setItem(`carousel.${name}`, JSON.stringify(value));
  } catch {
    // Full or forbidden: only conversations report storage errors to the user.
  }
}
