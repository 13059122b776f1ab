// Service worker of the chat page. Its shell also opens without the server, so that old conversations can be read. Everything
// else goes to the network: the server decides what is fresh.

const CACHE = "carousel";
// Its types are those of another global scope than a page's.
const worker = /** @type {any} */ (self);
const PAGE = new URL(worker.registration.scope).pathname;

worker.addEventListener("fetch", (/** @type {any} */ event) => {
  const { origin, pathname } = new URL(event.request.url);
  if (event.request.method !== "GET" || origin !== location.origin) return;
  if (event.request.mode === "navigate" && pathname === PAGE) event.respondWith(fresh(event.request));
  else if (pathname.startsWith(`${PAGE}static/`)) event.respondWith(known(event.request));
});

/** Returns the page from the server, or the last one if that cannot be reached. @param {Request} request */
async function fresh(request) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(PAGE, response.clone());
    return response;
  } catch (error) {
    const last = await cache.match(PAGE);
    if (last) return last;
    throw error;
  }
}

/** Returns a file, whose address has its version, and forgets those of other versions. @param {Request} request */
async function known(request) {
  const cache = await caches.open(CACHE);
  const found = await cache.match(request);
  if (found) return found;
  const response = await fetch(request);
  const [, version] = new URL(request.url).pathname.split("static/");
  if (!response.ok) return response;
  for (const old of await cache.keys())
    if (old.url.includes("/static/") && !old.url.includes(`/static/${version.split("/")[0]}/`)) await cache.delete(old);
  await cache.put(request, response.clone());
  return response;
}
