"""Check of the simulator against the live engine."""

from __future__ import annotations

import argparse
import gc
import json
import time
from dataclasses import asdict, replace
from typing import Any
from unittest import mock

from app.admission.tenants import TIERS
from app.cli.bench.workloads import Scale, prompt_ids, workload
from benchmarks.results import save, spread
from benchmarks.scheduling.load import CONTEXT, SLOTS, model
from benchmarks.tally import Tally
from benchmarks.windows import MAX_STOLEN_SHARE, ROUNDS_PER_WINDOW, stolen, stolen_since
from engine.config import EngineConfig
from engine.engine import Engine
from engine.scheduling.batch import Batch
from engine.simulation import StepCost, simulate
from engine.types import Event, Request, SamplingParams

CHECKED, RATIOS = "uniform,sharegpt,bursts,mixed", ("tokens_per_second", "ttft_p50", "ttft_p99")
CHECK_SCALE = Scale(rate=6.0, prompt=64, output=48, max_tokens=256)


def requests_of(name: str, count: int, scale: Scale, seed: int) -> list[tuple[float, Request]]:
    """Return arrival times and requests of a workload; every prompt is unique."""
    workload_requests = [(number, one) for number, one in enumerate(workload(name, count, scale, seed))]
    return [
        (
            one.at,
            Request(
                id=str(number),
                prompt=tuple(prompt_ids(one, 7919 * seed + number, 4096)),
                sampling=SamplingParams(max_tokens=one.output_tokens, temperature=0.0),
                service_class=TIERS[one.tier],
                tenant=one.tenant,
            ),
        )
        for number, one in workload_requests
    ]


def run_live(engine: Engine, arrivals: list[tuple[float, Request]]) -> tuple[Tally, list[list[float]], float]:
    """Serve `arrivals` at their times.

    Return the tally, a row per busy step including the work around it (a number for each field of `StepCost`, and its
    seconds), and the seconds from the first arrival to the last token.
    """
    tally, steps, batches, clock = Tally(), [], [], time.perf_counter
    began, at, ended = clock(), 0, 0.0
    observe = engine.scheduler.estimates.observe

    def note(batch: Batch, seconds: float) -> None:
        observe(batch, seconds)
        batches.append(batch)

    with mock.patch.object(engine.scheduler.estimates, "observe", note):
        while at < len(arrivals) or engine.has_work:
            started, woken = clock(), not engine.has_work
            if woken:  # the time to wake up counts as well
                started = began + arrivals[at][0]
                time.sleep(max(0.0, started - clock()))
            while at < len(arrivals) and arrivals[at][0] <= clock() - began:
                engine.submit(tally.arrive(*arrivals[at])[1])
                at += 1
            contexts = {sequence.slot: sequence.num_computed for sequence in engine.scheduler.running}
            events = engine.step()
            ended = clock()
            tally.take(events, ended - began)
            for batch in batches:
                steps.append([*_work(batch, contexts), woken, ended - started])
            batches.clear()
    return tally, steps, ended - began


FITTED = ("step", "decode", "prompt", "chunk", "context", "swapped_page", "wake")  # in the order of `_work`


def _work(batch: Batch, contexts: dict[int, int]) -> list[float]:
    """Return the work of a step, in the order of `FITTED` without the last entry, `wake`."""
    return [
        1.0,
        len(batch.decodes),
        sum(chunk.length for chunk in batch.chunks),
        len(batch.chunks),
        sum(contexts.get(slot, 0) for slot in batch.decodes),
        len(batch.swap_in) + len(batch.swap_out),
    ]


def fit(steps: list[list[float]]) -> StepCost:
    """Fit step costs by least absolute deviations, because a step that lost its core for 50 ms is an outlier.

    Uses iteratively reweighted least squares: the farther off a step is, the less weight it has. Costs are not
    negative: a column with a negative result is dropped, and the others are fitted again.
    """
    import numpy as np

    table, seconds = np.array(steps)[:, :-1], np.array(steps)[:, -1]
    kept = [column for column in range(table.shape[1]) if table[:, column].any()]
    weight = np.ones(len(seconds))
    for _ in range(50):
        found, *_ = np.linalg.lstsq(table[:, kept] * weight[:, None], seconds * weight, rcond=None)
        if (found < 0).any():
            kept.pop(int(found.argmin()))
            continue
        weight = np.abs(seconds - table[:, kept] @ found).clip(min=1e-6) ** -0.5
    by_column = dict(zip(kept, map(float, found), strict=True))
    return StepCost(**{name: by_column.get(column, 0.0) for column, name in enumerate(FITTED)})


def check(options: argparse.Namespace) -> None:
    """Fit costs to one seed of a workload and predict another.

    Both are measured while the host does not steal CPU time, if that succeeds in a few attempts.
    """
    from engine.build import build_engine

    config = EngineConfig(model=options.model or model(), max_num_seqs=SLOTS, max_model_len=CONTEXT).validate()
    engine = build_engine(config, lambda *_: None)
    gc.collect()
    gc.freeze()  # as the engine process does: walking all objects of torch is not part of a step's cost
    info, scheduler = engine.info, engine.scheduler
    scale = replace(CHECK_SCALE, rate=options.rate)
    rows: list[dict[str, Any]] = []
    for run in range(options.runs):
        for name in options.workloads.split(","):
            arrivals = requests_of(name, options.requests, scale, 2 * run + 1)
            tries, lost = 0, 1.0
            while lost > MAX_STOLEN_SHARE and tries < ROUNDS_PER_WINDOW:
                tries, had = tries + 1, stolen()
                _, steps, _ = run_live(engine, requests_of(name, options.requests, scale, 2 * run))
                live_tally, _, took = run_live(engine, arrivals)
                lost = stolen_since(had)
            cost = fit(steps)
            tally = Tally()
            times: list[float] = []

            def take(events: list[Event], now: float, tally: Tally = tally, times: list[float] = times) -> None:
                tally.take(events, now)
                times[:] = [now]

            simulate(
                config,
                cost,
                (tally.arrive(*arrival) for arrival in arrivals),
                take,
                num_pages=info.num_pages,
                host_pages=scheduler.kv_manager.host.total,
                max_len=info.max_model_len,
                costs=scheduler.policy.costs,
            )
            row: dict[str, Any] = {"run": run, "workload": name, "tries": tries, "stolen": lost, "cost": asdict(cost)}
            for kind, found, seconds in (("live", live_tally, took), ("simulated", tally, times[0])):
                row[kind] = {"tokens_per_second": found.tokens / seconds, **found.all().figures()}
            row["ratio"] = {key: row["simulated"][key] / row["live"][key] for key in RATIOS}
            rows.append(row)
            print(json.dumps({k: v for k, v in row.items() if k != "cost"}), flush=True)
    summary = {
        name: {key: spread([r["ratio"][key] for r in rows if r["workload"] == name]) for key in RATIOS}
        for name in options.workloads.split(",")
    }
    print(json.dumps(summary, indent=1))
    save("scheduling_check", vars(options) | {"slots": SLOTS}, rows, summary)
