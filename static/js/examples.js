// Example questions of an empty conversation: the operator's, or these, worded for the bundled model.

import { OFFERED } from "./env.js";

/** @type {string[]} */
export const EXAMPLES = OFFERED ?? [
  "Tell me a story about a fox",
  "How does continuous batching work?",
  "Write a table of the planets",
  "Write a Python function that checks for primes",
];
