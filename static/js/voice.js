// Voice, where the browser has it: answers are read aloud, and messages dictated. A user who begins to speak stops both the
// reading and the answer.
import { byId } from "./dom.js";
import { toast } from "./notices.js";

/**
 * Speech recognition of a browser, which TypeScript does not declare.
 * @typedef {{ lang: string, continuous: boolean, interimResults: boolean, start(): void, stop(): void, onspeechstart: () => void,
 *   onend: () => void, onerror: (event: { error: string }) => void,
 *   onresult: (event: { results: ArrayLike<{ 0: { transcript: string } }> }) => void }} Recognition
 */

export const canRead = "speechSynthesis" in window;

export const isReading = () => canRead && speechSynthesis.speaking;

/** Reads texts aloud, one after another, in place of what is being read. @param {string[]} texts */
export function readAloud(texts) {
  speechSynthesis.cancel();
  for (const text of texts) speechSynthesis.speak(new SpeechSynthesisUtterance(text));
}

export const stopReading = () => canRead && speechSynthesis.cancel();

export class Dictation {
  #recognition = /** @type {Recognition | null} */ (null);
  #before = "";

  /** @param {import("./composer.js").Composer} composer @param {() => void} onSpeech called when the user begins to speak */
  constructor(composer, onSpeech) {
    const Recognizer =
      /** @type {any} */ (window).SpeechRecognition ?? /** @type {any} */ (window).webkitSpeechRecognition;
    this.button = byId("dictate", HTMLButtonElement);
    this.button.hidden = !Recognizer;
    if (!Recognizer) return;
    this.button.addEventListener("click", () => {
      if (this.#recognition) this.#recognition.stop();
      else this.#start(new Recognizer(), composer, onSpeech);
    });
  }

  /** @param {Recognition} recognition @param {import("./composer.js").Composer} composer @param {() => void} onSpeech */
  #start(recognition, composer, onSpeech) {
    this.#recognition = Object.assign(recognition, {
      lang: navigator.language,
      continuous: true,
      interimResults: true,
      onspeechstart: () => {
        stopReading();
        onSpeech();
      },
      onresult: (/** @type {Parameters<Recognition["onresult"]>[0]} */ { results }) =>
        composer.setText(this.#before + Array.from(results, (result) => result[0].transcript).join("")),
      onerror: (/** @type {{ error: string }} */ { error }) =>
        error !== "no-speech" && toast(`Dictation ended: the browser reports “${error}”.`),
      onend: () => this.#show(null),
    });
    this.#before = composer.text && `${composer.text} `;
    recognition.start();
    this.#show(recognition);
  }

  /** @param {Recognition | null} recognition the running one */
  #show(recognition) {
    this.#recognition = recognition;
    this.button.setAttribute("aria-pressed", String(Boolean(recognition)));
  }
}
