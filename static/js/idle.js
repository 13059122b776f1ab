// Background work in small portions while the browser is idle.

const SLICE_MS = 8; // for browsers that do not report their idle time

/**
 * Calls `step` repeatedly until it returns false.
 * @param {() => boolean} step
 * @returns {() => void} function that stops it
 */
export function whenIdle(step) {
  let handle = 0;
  const hasIdle = "requestIdleCallback" in window;
  const next = () => (handle = hasIdle ? requestIdleCallback(slice) : window.setTimeout(slice));
  const slice = (/** @type {IdleDeadline | void} */ deadline) => {
    const start = performance.now();
    const hasTime = () => (deadline ? deadline.timeRemaining() > 1 : performance.now() - start < SLICE_MS);
    let more = true;
    do more = step();
    while (more && hasTime());
    if (more) next();
  };
  next();
  return () => (hasIdle ? cancelIdleCallback(handle) : clearTimeout(handle));
}
