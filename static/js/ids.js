// Random ids of conversations, messages and requests.

/** Returns a random id. Unlike randomUUID, getRandomValues also exists on plain http in a local network. */
export const newId = () =>
  [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
