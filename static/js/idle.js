// Owns work that is done a little at a time, while the browser has nothing else to do.

const SLICE_MS = 8; // where the browser does not tell how long it is idle

/**
 * Calls `step` again and again until it returns false.
 * @param {() => boolean} step
 * @returns {() => void} stops it
 */
export function whenIdle(step) {
  let handle = 0;
  const hasIdle = "requestIdleCallback" in window;
  const next = () => (handle = hasIdle ? requestIdleCallback(slice) : window.setTimeout(slice));
  const slice = (deadline) => {
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
