// Stop of an answer that another tab writes. That tab is asked to stop it, since only it can record that the user stopped: the
// stream of a stopped answer ends like that of a complete one.
import { stopAnswer } from "./api.js";

/** @import { Message } from "./types.js" */

const PATIENCE_MS = 1500; // after which the tab is taken for frozen, and the server stops the answer

export class StopSignal {
  #channel = "BroadcastChannel" in window ? new BroadcastChannel("carousel.stop") : null;

  /** @param {(id: string) => void} onStop called with the id of an answer that this tab may be writing */
  constructor(onStop) {
    if (this.#channel) this.#channel.onmessage = ({ data }) => onStop(data);
  }

  /** @param {Message} message @param {() => boolean} isStillRunning */
  send({ id, stream }, isStillRunning) {
    this.#channel?.postMessage(id);
    const stop = () => stream && isStillRunning() && stopAnswer(stream);
    setTimeout(stop, this.#channel ? PATIENCE_MS : 0);
  }
}
