// Random ids of conversations, messages, requests and this browser.
import { readPref, writePref } from "./prefs.js";

/** Returns a random id. Unlike randomUUID, getRandomValues also exists on plain http in a local network. */
export const newId = () =>
  [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

let name = "";

/** Returns the name of this browser as a writer of rows; without storage, that of this page. */
export function writer() {
  if (!name) writePref("writer", (name = readPref("writer", newId())));
  return name;
}
