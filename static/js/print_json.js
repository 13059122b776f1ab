// Layout of JSON that arrives in pieces: one member a line. Pure, linear in the text; printed text never changes.

const MAX_INDENTED_LEVELS = 16;

export class JsonPrinter {
  #level = 0;
  #inString = false;
  #isEscaped = false;
  #isOpened = false; // the last token opened an object or array; its first member begins a line
  #isPlain = /** @type {boolean | null} */ (null); // text that is neither an object nor an array is left as it is

  /** Returns the next part of the laid out text. @param {string} piece */
  push(piece) {
    this.#isPlain ??= piece.trim() ? !/^\s*[{[]/.test(piece) : null;
    if (this.#isPlain) return piece;
    let printed = "";
    for (const letter of piece) printed += this.#inString ? this.#string(letter) : this.#token(letter);
    return printed;
  }

  /** @param {string} letter */
  #string(letter) {
    if (letter === '"' && !this.#isEscaped) this.#inString = false;
    this.#isEscaped = letter === "\\" && !this.#isEscaped;
    return letter;
  }

  /** @param {string} letter */
  #token(letter) {
    if (/\s/.test(letter)) return "";
    const isClosing = letter === "}" || letter === "]";
    if (isClosing) this.#level--;
    const begins = isClosing ? !this.#isOpened : this.#isOpened;
    const before = begins ? this.#newLine() : "";
    this.#isOpened = letter === "{" || letter === "[";
    if (this.#isOpened) this.#level++;
    this.#inString = letter === '"';
    if (letter === ",") return before + letter + this.#newLine();
    return before + letter + (letter === ":" ? " " : "");
  }

  #newLine() {
    return `\n${"  ".repeat(Math.max(0, Math.min(this.#level, MAX_INDENTED_LEVELS)))}`;
  }
}

/** Returns a text laid out if it is a JSON object or array, else as it is. @param {string} text */
export function printJson(text) {
  try {
    return typeof JSON.parse(text) === "object" ? new JsonPrinter().push(text) : text;
  } catch {
    return text;
  }
}
