// Tiles beside the carousel: queue, paused requests, pages, pauses, figures, and a table for screen readers.
import { byId, h } from "../dom.js";
import { CAUSE_TEXTS } from "../labels.js";
import { describePause } from "./pauses.js";

/** @import { ClassName, Snapshot } from "../types.js" */

const CLASSES = /** @type {ClassName[]} */ (["interactive", "standard", "batch"]);
const MAX_CELLS = 288;
const KINDS = [...CLASSES, "kept", "cached"]; // of occupied cells, in order
const MAX_EVENTS = 40;

/** @param {number} value */
const number = (value) => Math.round(value).toLocaleString("en");
/** @param {string} id @param {string | number} text */
const set = (id, text) => {
  const node = byId(id);
  if (node.textContent !== String(text)) node.textContent = String(text);
};

/** @param {Snapshot} snapshot */
export function showFigures(snapshot) {
  const {
    slots,
    batch,
    tokens_per_s: tokens,
    prefill_tokens_per_s: prefill,
    step_ms: ms,
    prefix_hit_rate: hits,
    requests_finished: finished,
  } = snapshot;
  set("tokens", number(tokens));
  set("prefill-rate", number(prefill));
  const busy = slots.filter((slot) => slot !== null);
  // An idle engine still reports its last step.
  set("step-ms", busy.length ? `${ms.toFixed(ms < 10 ? 2 : 1)} ms` : "–");
  set(
    "batch",
    !busy.length ? "0" : `${batch.decode}${batch.prefill_tokens ? ` + ${number(batch.prefill_tokens)}` : ""}`,
  );
  set("finished", number(finished));
  set("busy", `${Math.round(snapshot.busy * 100)} %`);
  set("hits", `${Math.round(hits * 100)} %`);
  for (const name of CLASSES) set(`count-${name}`, busy.filter((slot) => slot.class === name).length);
  set("count-prefill", busy.filter((slot) => slot.state === "prefill").length);
  set("count-empty", slots.length - busy.length);
}

/**
 * Shows the gain of drafts, once the engine has had some.
 * @param {Snapshot} snapshot @param {ReturnType<import("./drafts.js").Drafts["read"]>} gain
 */
export function showDrafts({ slots, drafts }, gain) {
  for (const node of document.querySelectorAll(".of-drafts")) node.toggleAttribute("hidden", !drafts.steps);
  set("step-tokens", gain ? gain.tokensAStep.toFixed(1) : "–");
  set("right-drafts", gain ? `${Math.round(gain.right * 100)} %` : "–");
  set("count-several", severalTokens(slots));
}

/** Returns the number of slots whose last step yielded several tokens. @param {Snapshot["slots"]} slots */
const severalTokens = (slots) => slots.filter((slot) => slot && slot.step_tokens > 1).length;

const TOKEN_PLACES = { swap: "swapped", partial: "in cache", recompute: "dropped" };

/** @param {Snapshot} snapshot */
export function showQueue({ queue, waiting, paused }) {
  const total = CLASSES.reduce((sum, name) => sum + waiting[name], 0);
  set(
    "queue-note",
    total
      ? CLASSES.filter((name) => waiting[name])
          .map((name) => `${waiting[name]} ${name}`)
          .join(", ")
      : "none",
  );
  fillList(byId("queue"), queue, ({ request, class: kind, cause, waited }) => [
    kind,
    request,
    CAUSE_TEXTS[cause] ?? cause,
    `${waited.toFixed(1)} s`,
  ]);
  set("paused-note", paused.length || "none");
  fillList(byId("paused"), paused, ({ request, class: kind, by, mechanism, context }) => [
    kind,
    request,
    by ? `for ${by}` : "memory ran short",
    `${number(context)} ${TOKEN_PLACES[mechanism] ?? mechanism}`,
  ]);
}

/**
 * Updates a list in place: a list that is rebuilt five times a second cannot be read or selected.
 * @template T @param {HTMLElement} list @param {T[]} items @param {(item: T) => string[]} cells
 */
function fillList(list, items, cells) {
  while (list.children.length > items.length) list.lastChild?.remove();
  items.forEach((item, i) => {
    const [kind, ...texts] = cells(item);
    const row = list.children[i] ?? list.appendChild(h("li", {}, h("i", { class: "dot" }), h("b"), h("span"), h("em")));
    row.setAttribute("data-class", kind);
    texts.forEach((text, k) => {
      const cell = row.children[k + 1];
      if (cell.textContent !== text) cell.textContent = text;
    });
  });
}

/** @param {Snapshot} snapshot */
export function showPages({ slots, pages, page_size: size }) {
  const mosaic = byId("mosaic");
  const each = Math.max(1, Math.ceil(pages.total / MAX_CELLS));
  const count = Math.ceil(pages.total / each);
  while (mosaic.children.length > count) mosaic.lastChild?.remove();
  while (mosaic.children.length < count) mosaic.append(h("i"));
  const kinds = cellKinds(slots, pages, count);
  kinds.forEach((kind, i) => {
    const cell = mosaic.children[i];
    if (cell.getAttribute("data-kind") !== kind) cell.setAttribute("data-kind", kind);
  });
  set(
    "pages-note",
    `${number(pages.total)} pages of ${size} tokens; a cell is ${each === 1 ? "one page" : `${each} pages`}`,
  );
  const { total: _, ...counts } = pages;
  for (const [name, value] of Object.entries(counts)) set(`pages-${name}`, number(value));
}

/**
 * Returns the kind of each cell: held pages by class, then those of sessions that wait, other cached ones, and free ones. Shared pages count once, so the classes divide the held total.
 * @param {Snapshot["slots"]} slots @param {Snapshot["pages"]} pages @param {number} count
 */
function cellKinds(slots, pages, count) {
  const byClass = CLASSES.map((name) => slots.reduce((sum, slot) => sum + (slot?.class === name ? slot.pages : 0), 0));
  const sum = byClass.reduce((a, b) => a + b, 0);
  const shares = byClass.map((value) => (sum ? (value / sum) * pages.held : 0));
  if (!sum) shares[1] = pages.held;
  const kinds = /** @type {string[]} */ ([]);
  let edge = 0;
  const kept = Math.min(pages.kept, pages.cached); // some may be held or lost
  [...shares, kept, pages.cached - kept].forEach((share, i) => {
    const name = KINDS[i];
    edge += share;
    const before = kinds.length;
    while (kinds.length < Math.min(count, Math.round((edge / pages.total) * count))) kinds.push(name);
    // Even the smallest share gets a cell
    if (i < 4 && share > 0 && kinds.length === before && before < count) kinds.push(name);
  });
  while (kinds.length < count) kinds.push("free");
  return kinds;
}

/** @param {import("./pauses.js").PauseEvent[]} events @param {Snapshot["preemptions"]} preemptions */
export function showPauses(events, { swap, partial, recompute }) {
  set("swaps", number(swap));
  set("partials", number(partial));
  set("recomputes", number(recompute));
  const list = byId("events");
  for (const event of events) {
    const time = new Date().toLocaleTimeString("en-GB");
    list.prepend(
      h(
        "li",
        { "data-kind": event.kind, "data-class": event.class },
        h("time", {}, time),
        h("i", { class: "dot" }),
        h("span", {}, describePause(event)),
      ),
    );
  }
  while (list.children.length > MAX_EVENTS) list.lastChild?.remove();
  byId("events-none").hidden = list.children.length > 0;
}

/** @param {number | null} ms */
const milliseconds = (ms) =>
  ms === null
    ? "–"
    : ms < 9.95
      ? `${ms.toFixed(1)} ms`
      : ms < 995
        ? `${Math.round(ms)} ms`
        : `${(ms / 1000).toFixed(1)} s`;

/** @param {Snapshot} snapshot */
export function showLatency({ latency }) {
  const body = byId("latency-body");
  CLASSES.forEach((name, i) => {
    const row =
      body.children[i] ??
      body.appendChild(
        h(
          "tr",
          { "data-class": name },
          h("th", { scope: "row" }, h("i", { class: "dot" }), name),
          ...Array.from({ length: 6 }, () => h("td")),
        ),
      );
    const { ttft_ms: first, itl_ms: gap, requests, good } = latency[name];
    const texts = [
      ...first.map(milliseconds),
      ...gap.map(milliseconds),
      number(requests),
      good === null ? "–" : `${Math.round(good * 100)} %`,
    ];
    texts.forEach((text, k) => {
      const cell = row.children[k + 1];
      if (cell.textContent !== text) cell.textContent = text;
    });
  });
}

/** @param {Snapshot} snapshot */
export function showTable({ slots }) {
  byId("slots-body").replaceChildren(
    ...slots.map((slot, i) => {
      const cells = slot
        ? [
            slot.request,
            slot.class,
            slot.state,
            number(slot.context),
            number(slot.generated),
            number(slot.pages),
            slot.step_tokens,
          ]
        : ["free", "", "", "", "", "", ""];
      return h("tr", {}, h("th", { scope: "row" }, String(i)), ...cells.map((text) => h("td", {}, String(text))));
    }),
  );
}

/** Describes the ring in one sentence, for screen readers. @param {Snapshot} snapshot */
export function summary({ slots, waiting, paused, tokens_per_s: tokens }) {
  const busy = slots.filter(Boolean).length;
  const queue = CLASSES.reduce((sum, name) => sum + waiting[name], 0);
  const several = severalTokens(slots);
  const drafts = several ? `, several tokens in the last step of ${several}` : "";
  return `${busy} of ${slots.length} slots occupied${drafts}, ${queue} waiting, ${paused.length} paused, ${number(tokens)} tokens per second`;
}
