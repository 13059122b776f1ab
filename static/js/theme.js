// Theme before first paint: a classic script in the head, so that the dark theme does not start with a white flash.
// js/appearance.js offers the choice; this file only applies the stored one.
(() => {
  try {
    const theme = localStorage.getItem("carousel.theme");
    if (theme === '"light"' || theme === '"dark"') document.documentElement.dataset.theme = JSON.parse(theme);
  } catch {
    // Storage may be forbidden; then the system's preference applies.
  }
})();
