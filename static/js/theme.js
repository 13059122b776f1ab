// Theme and width of the list before first paint: a classic script in the head, so that the dark theme does not start with
// a white flash, and nothing moves. js/appearance.js and js/sidebar_width.js offer the choice; this file applies the stored one.
(() => {
  try {
    const theme = localStorage.getItem("carousel.theme");
    const width = Number(localStorage.getItem("carousel.list-width"));
    if (width) document.documentElement.style.setProperty("--list-width", `${width}px`);
    if (theme === '"light"' || theme === '"dark"') document.documentElement.dataset.theme = JSON.parse(theme);
  } catch {
    // Storage may be forbidden; then the system's preference applies.
  }
})();
