// Closing of a dialog by its cross or by a click outside.

/**
 * Sets up both. The cross is not a submit button, so Enter in a field does not press it.
 * @param {HTMLDialogElement} dialog
 */
export function closeByClick(dialog) {
  dialog.addEventListener("click", (event) => {
    const target = /** @type {Element} */ (event.target);
    if (target === dialog || target.closest("[data-close]")) dialog.close();
  });
}
