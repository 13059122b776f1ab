// Text files of the message that is being written: by drop, paste and button, each shown with its name and tokens. They are
// read in the page, and become a part of the message; nothing else is uploaded.
import { html, render } from "../vendor/lit/lit-html.js";
import { ApiError, countTextTokens } from "./api.js";
import { byId } from "./dom.js";
import { icon } from "./templates.js";
import { toast } from "./notices.js";

/** @import { TextFile } from "./types.js" */

const MAX_BYTES = 1_000_000; // of a file, far more than the context of most models
const MAX_FILES = 20; // of a message
const PASTED_CHARACTERS = 2500; // beyond which pasted text becomes a file

export class Files {
  #draft = "";
  #byDraft = /** @type {Map<string, TextFile[]>} */ (new Map());

  /** @param {() => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    const input = byId("file-input", HTMLInputElement);
    byId("attach").addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      this.#add([...(input.files ?? [])]);
      input.value = "";
    });
    addEventListener("dragover", (event) => {
      if (isFile(event.dataTransfer) || !isField(event.target)) event.preventDefault();
      document.body.toggleAttribute("data-dropping", isFile(event.dataTransfer));
    });
    addEventListener("dragleave", ({ relatedTarget }) => relatedTarget || this.#endDrop());
    addEventListener("drop", (event) => {
      this.#endDrop();
      // A link that is dropped beside a field would also replace the page.
      if (isFile(event.dataTransfer) || !isField(event.target)) event.preventDefault();
      this.#add([...(event.dataTransfer?.files ?? [])]);
    });
    addEventListener("paste", (event) => this.#paste(event));
  }

  #endDrop() {
    document.body.removeAttribute("data-dropping");
  }

  /** Files of the draft that is shown. */
  get list() {
    return this.#byDraft.get(this.#draft) ?? [];
  }

  /** Shows the files of a draft, which are kept until the page is closed. @param {string} draft */
  open(draft) {
    this.#draft = draft;
    this.#show();
  }

  /** Removes and returns the files of the draft. */
  take() {
    const { list } = this;
    this.#byDraft.delete(this.#draft);
    this.#show();
    return list;
  }

  /** @param {ClipboardEvent} event */
  #paste(event) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    // Word processors add an image of a copied text, which is pasted as text.
    if (isFile(event.clipboardData) && !text) {
      event.preventDefault();
      this.#add([...(event.clipboardData?.files ?? [])]);
    } else if (text.length > PASTED_CHARACTERS && event.target === byId("prompt")) {
      event.preventDefault();
      this.#put({ name: "Pasted text", text }, this.#draft);
    }
  }

  /** @param {File[]} files */
  async #add(files) {
    const draft = this.#draft;
    for (const file of files) {
      const refusal = file.size > MAX_BYTES ? "is larger than 1 MB" : null;
      const text = refusal ? null : textOf(new Uint8Array(await file.arrayBuffer()));
      if (text !== null) await this.#put({ name: file.name, text }, draft);
      else toast(`${file.name} ${refusal ?? "is not a text file"}. Nothing was uploaded.`);
    }
  }

  /** @param {TextFile} file @param {string} draft that was shown when it was given; another one may be by now */
  async #put(file, draft) {
    const list = this.#byDraft.get(draft) ?? [];
    if (list.length >= MAX_FILES) return toast(`A message has at most ${MAX_FILES} files.`);
    this.#byDraft.set(draft, [...list, file]);
    this.#show();
    try {
      file.tokens = await countTextTokens(file.text);
    } catch (error) {
      file.isTooLong = error instanceof ApiError && error.code === "context_length_exceeded";
    }
    this.#show();
  }

  /** @param {TextFile} file */
  #remove(file) {
    this.#byDraft.set(
      this.#draft,
      this.list.filter((one) => one !== file),
    );
    this.#show();
    byId("prompt").focus();
  }

  #show() {
    const node = byId("files");
    render(
      fileChips(this.list, (file) => this.#remove(file)),
      node,
    );
    node.hidden = !this.list.length;
    this.onChange();
  }
}

/** Returns the chips of files; with `remove`, each has a button. @param {TextFile[]} files @param {(file: TextFile) => void} [remove] */
export const fileChips = (files, remove) =>
  files.map(
    (file) => html`<span class="chip" title=${file.name}>
      ${icon("file")}<span class="chip-name">${file.name}</span>
      <span class="chip-size">${sizeOf(file)}</span>
      ${
        remove &&
        html`<button
        type="button"
        class="icon-button tiny"
        aria-label=${`Remove ${file.name}`}
        @click=${() => remove(file)}
      >
        ${icon("close")}
      </button>`
      }
    </span>`,
  );

/** @param {TextFile} file */
function sizeOf({ text, tokens, isTooLong }) {
  if (isTooLong) return "longer than the context";
  const [count, unit] = tokens === undefined ? [text.length, "characters"] : [tokens, "tokens"];
  return `${count.toLocaleString("en-US")} ${unit}`;
}

/** Returns the text of a file; null if it is none. @param {Uint8Array} bytes */
function textOf(bytes) {
  const encoding = { "255,254": "utf-16le", "254,255": "utf-16be" }[bytes.slice(0, 2).join()] ?? "utf-8";
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text.replaceAll("\r\n", "\n");
  } catch {
    return null;
  }
}

/** @param {DataTransfer | null} data */
const isFile = (data) => data?.types.includes("Files") ?? false;

/** @param {EventTarget | null} target */
const isField = (target) => target instanceof HTMLTextAreaElement || target instanceof HTMLInputElement;
