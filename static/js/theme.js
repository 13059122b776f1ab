// Owns the theme before first paint: a classic script in the head, so a dark reader never sees a white flash.
// js/appearance.js offers the choice; this file only applies what was stored.
(() => {
  try {
    const theme = localStorage.getItem("carousel.theme");
    if (theme === '"light"' || theme === '"dark"') document.documentElement.dataset.theme = JSON.parse(theme);
  } catch {
    // Storage may be forbidden; the system's own preference then stands.
  }
})();
