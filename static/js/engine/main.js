// Entry point of the engine page: passes each snapshot to all parts.
import { setUpTheme } from "../appearance.js";
import { byId } from "../dom.js";
import { showFelt, showFigures, showLine, showPages, showPauses, showTable, summary } from "./panels.js";
import { Pauses } from "./pauses.js";
import { Ring } from "./ring.js";
import { watch } from "./source.js";
import { Smooth } from "./smooth.js";
import { Spark } from "./spark.js";

const STATES = {
  connecting: "connecting", live: "live", asleep: "asleep", lost: "no connection, trying again",
  denied: "a key is needed: enter it on the chat page in this tab",
  loading: "the engine is loading", restarting: "the engine starts again", failed: "the engine is gone", stopped: "the server stops",
};
const READ_EVERY = 2000; // ms between updates of the table and the ring's description, which are meant to be read

const ring = new Ring();
const spark = new Spark(byId("spark"), byId("spark-note"));
const pauses = new Pauses();
const smooth = new Smooth();
const table = byId("slots-table");
let readAt = 0;

setUpTheme(byId("theme"));
table.addEventListener("toggle", () => (readAt = 0));
document.documentElement.dataset.ready = "";

watch(
  (raw) => {
    const snapshot = smooth.read(raw);
    ring.show(snapshot);
    spark.show(snapshot);
    showFigures(snapshot);
    showLine(snapshot);
    showPages(snapshot);
    showPauses(pauses.read(snapshot), snapshot.preemptions);
    if (performance.now() - readAt < READ_EVERY && readAt) return;
    readAt = performance.now();
    byId("ring-label").textContent = summary(snapshot);
    showFelt(snapshot);
    if (table.open) showTable(snapshot);
  },
  (state) => {
    byId("live").dataset.state = state;
    byId("live-text").textContent = STATES[state];
  },
);
