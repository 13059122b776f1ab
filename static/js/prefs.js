// Owns small choices kept in localStorage: theme, defaults, drafts. A browser that forbids storage costs the memory, not the page.

/** @template T @param {string} name @param {T} fallback @returns {T} */
export function readPref(name, fallback) {
  try {
    const text = localStorage.getItem(`carousel.${name}`);
    return text === null ? fallback : JSON.parse(text);
  } catch {
    return fallback;
  }
}

/** @param {string} name @param {any} value undefined, null and "" forget it */
export function writePref(name, value) {
  try {
    if (value === undefined || value === null || value === "") localStorage.removeItem(`carousel.${name}`);
    else localStorage.setItem(`carousel.${name}`, JSON.stringify(value));
  } catch {
    // Full or forbidden: conversations report storage faults to the reader, small choices are not worth a message.
  }
}
