// Wait for the model: polls /health until it is ready and shows the progress of loading.
import { ApiError, call } from "./api.js";
import { byId } from "./dom.js";

/** @import { Loading } from "./types.js" */

/**
 * Resolves once the server is ready.
 * @param {(ready: boolean) => void} onReady called with false first if the page has to wait
 */
export async function untilReady(onReady) {
  for (let waited = false; ; waited = true) {
    try {
      await call("/health");
      byId("loading").hidden = true;
      return onReady(true);
    } catch (error) {
      if (!waited) onReady(false);
      show(error);
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

/** @param {unknown} error */
function show(error) {
  const bar = byId("loading-bar", HTMLProgressElement);
  const loading = error instanceof ApiError ? error.body?.loading : null;
  byId("loading").hidden = false;
  byId("loading-title").textContent =
    error instanceof ApiError
      ? loading
        ? "The model is loading"
        : error.message
      : "The server cannot be reached, trying again";
  if (loading && loading.total > 0) {
    bar.max = loading.total;
    bar.value = loading.done;
  } else {
    bar.removeAttribute("value");
  }
  byId("loading-detail").textContent = loading
    ? [loading.what, share(loading)].filter(Boolean).join(", ")
    : "You can write meanwhile.";
}

/** @param {Loading} loading */
const share = ({ what, done, total }) =>
  what === "weights" ? `${size(done)} of ${size(total)}` : total > 1 ? `${done} of ${total}` : "";
/** @param {number} bytes */
const size = (bytes) => (bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${Math.round(bytes / 1e6)} MB`);
