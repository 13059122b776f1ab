// Definitions of one answer: targets of reference links, and labels of footnotes. A block may use a definition of a later one.

const MAX_DEFINITIONS = 1000; // further ones stay without effect: each block that is parsed gets a copy of all links

/** @typedef {{ href: string, title: string | undefined }} LinkTarget */

/** Prefix of the labels of footnotes, as in the text; a link's label cannot begin with it. @param {string} label */
export const noteKey = (label) => `^${label.toLowerCase()}`;

export class References {
  /** @type {Record<string, LinkTarget>} */
  links = Object.create(null);
  notes = /** @type {Set<string>} */ (new Set());
  #fresh = /** @type {string[]} */ ([]);

  /** Adds the definitions of a complete block; the first one of a label is valid.
   * @param {Record<string, LinkTarget>} links @param {Iterable<string>} notes */
  add(links, notes) {
    for (const label of Object.keys(links)) {
      if (label in this.links || this.#isFull) continue;
      this.links[label] = links[label];
      this.#fresh.push(label);
    }
    for (const key of notes) {
      if (this.notes.has(key) || this.#isFull) continue;
      this.notes.add(key);
      this.#fresh.push(key);
    }
  }

  get #isFull() {
    return this.notes.size + Object.keys(this.links).length >= MAX_DEFINITIONS;
  }

  /** Returns the labels that were defined since the last call. */
  takeFresh() {
    return this.#fresh.splice(0);
  }
}
