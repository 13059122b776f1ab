// Owns what an empty conversation offers. Worded for the small model that ships with the server; change it here, nowhere else.

/** @type {string[]} */
export const EXAMPLES = [
  "Tell me a story about a fox",
  "How does continuous batching work?",
  "Write a table of the planets",
  "Write a Python function that checks for primes",
];
