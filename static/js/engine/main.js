// Entry point of the engine page: passes each snapshot to all parts.
import { setUpTheme } from "../appearance.js";
import { byId } from "../dom.js";
import { askKey, setUpKey } from "../key_dialog.js";
import { Drafts } from "./drafts.js";
import {
  showDrafts,
  showLatency,
  showFigures,
  showQueue,
  showPages,
  showPauses,
  showTable,
  summary,
} from "./panels.js";
import { Engines } from "./engines.js";
import { Pauses } from "./pauses.js";
import { Ring } from "./ring.js";
import { watch } from "./source.js";
import { RateSmoother } from "./smooth.js";
import { Spark } from "./spark.js";

const STATES = {
  connecting: "connecting",
  live: "live",
  asleep: "paused while hidden",
  lost: "no connection, trying again",
  denied: "a key is needed",
  loading: "the engine is loading",
  restarting: "the engine is restarting",
  retrying: "the engine will be started again",
  failed: "the engine has failed",
  stopped: "the server is stopping",
};
const TEXT_INTERVAL_MS = 2000; // ms between updates of the table and of the ring's description

const ring = new Ring();
const spark = new Spark(byId("spark", SVGSVGElement), byId("spark-note"));
let pauses = new Pauses();
let smooth = new RateSmoother();
let drafts = new Drafts();
const table = byId("slots-table", HTMLDetailsElement);
let textAt = 0;
const engines = new Engines(byId("engines"), () => {
  pauses = new Pauses();
  smooth = new RateSmoother();
  drafts = new Drafts();
  spark.clear();
  byId("events").replaceChildren();
  textAt = 0;
  if (engines.state) showState(engines.state);
});

setUpTheme(byId("theme"));
table.addEventListener("toggle", () => (textAt = 0));

const source = watch(
  (raw) => {
    engines.show(raw);
    if (raw.engine !== engines.chosen) return;
    showState("live");
    const snapshot = smooth.read(raw);
    ring.show(snapshot);
    spark.show(snapshot);
    showFigures(snapshot);
    showDrafts(snapshot, drafts.read(snapshot));
    showQueue(snapshot);
    showPages(snapshot);
    showPauses(pauses.read(snapshot), snapshot.preemptions);
    if (performance.now() - textAt < TEXT_INTERVAL_MS && textAt) return;
    textAt = performance.now();
    byId("ring-label", SVGTitleElement).textContent = summary(snapshot);
    showLatency(snapshot);
    if (table.open) showTable(snapshot);
  },
  (state, reason) => {
    // Once: a dialog that was closed does not open again with each attempt to connect.
    if (state === "denied" && byId("live").dataset.state !== state) askKey(reason);
    showState(state);
  },
  (event) => {
    engines.lose(event);
    if (event.engine === engines.chosen) showState(event.phase);
  },
);

/** @param {keyof typeof STATES} state */
function showState(state) {
  byId("live").dataset.state = state;
  byId("live-text").textContent = STATES[state];
}
setUpKey(() => {
  byId("live").dataset.state = "connecting"; // a refused key asks again
  source.reconnect();
});
document.documentElement.dataset.ready = "";
