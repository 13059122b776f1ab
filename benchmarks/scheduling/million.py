"""Simulation of every policy with a million requests."""

from __future__ import annotations

import argparse
import gc
import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.admission.tenants import TIERS
from app.cli.bench.workloads import Scale, prompt_ids, workload
from benchmarks.results import FOLDER, save
from benchmarks.tally import Tally
from engine.config import EngineConfig
from engine.simulation import StepCost, simulate
from engine.types import Request, SamplingParams, ServiceClass

GIVEN = StepCost(step=0.008, decode=0.00002, prompt=0.00005, context=2e-8, swapped_page=0.00002)  # roughly a GPU

MILLION: dict[str, dict[str, Any]] = {
    "carousel": {},  # the slowest policy comes first, so that no core is idle at the end
    "fastserve": {"scheduling_policy": "fastserve"},
    "carousel, --max-step-slowdown inf": {"max_step_slowdown": float("inf")},
    "dynamic": {"scheduling_policy": "orca", "batching": "dynamic", "batch_timeout": 0.05},
    "static": {"scheduling_policy": "orca", "batching": "static"},
    **{policy: {"scheduling_policy": policy} for policy in ("orca", "vllm", "sglang")},
}


def simulated(
    name: str, options: dict[str, Any], requests: int, scale: Scale, cost: StepCost, slots: int, pages: int
) -> dict[str, Any]:
    """Simulate one policy on one workload and return its figures."""
    config = EngineConfig(
        model="none", max_num_seqs=slots, enable_prefix_caching=name == "prefixes", **options
    ).validate()
    tally = Tally()

    def arrivals():
        for number, arrival in enumerate(workload(name, requests, scale)):
            prompt = prompt_ids(arrival, number, 32_000) if arrival.prefix is not None else [5] * arrival.prompt_tokens
            sampling = SamplingParams(max_tokens=arrival.output_tokens)
            yield tally.arrive(
                arrival.at,
                Request(
                    id=str(number),
                    prompt=tuple(prompt),
                    sampling=sampling,
                    service_class=TIERS[arrival.tier],
                    tenant=arrival.tenant,
                ),
            )

    began = time.perf_counter()
    engine = simulate(config, cost, arrivals(), tally.take, num_pages=pages, host_pages=16 * pages)
    busy = engine.load().busy_seconds
    found = tally.figures(max(busy, 1e-9)) | {"took": time.perf_counter() - began}
    counters = engine.load().counters
    found["occupancy"] = counters.generated_tokens / counters.steps / slots  # mean share of slots with a token per step
    found["preemptions"] = sum(sum(by_class) for by_class in counters.preemptions)
    found["recomputed_tokens"] = counters.recomputed_tokens
    return found


def _one_of_million(job: tuple[str, str, int, float]) -> dict[str, Any]:
    policy, name, requests, load = job
    gc.disable()  # there are no reference cycles here, and searching for them takes a tenth of the time
    scale = Scale(rate=load, prompt=64, output=24, max_tokens=256)
    row = simulated(name, MILLION[policy], requests, scale, GIVEN, slots=128, pages=1024)
    return {"policy": policy, "workload": name, "rate": load, **row}


def million(options: argparse.Namespace) -> None:
    """Simulate each policy with `requests` requests on two processes, and draw a plot."""
    jobs = [(policy, options.workload, options.requests, options.rate) for policy in MILLION]
    began = time.perf_counter()
    rows = []
    with ProcessPoolExecutor(2) as pool:
        for row in pool.map(_one_of_million, jobs):
            rows.append(row)
            print(json.dumps(row), flush=True)
    took = time.perf_counter() - began
    print(f"{options.requests:,} requests through each of {len(MILLION)} policies in {took:.0f} s")
    save("scheduling_million", vars(options) | {"cost": asdict(GIVEN)}, rows, {"took": took})
    plot_million(rows, FOLDER / "scheduling_million.svg")


def plot_million(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot TTFT and longest gaps of each class, for each policy."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    classes = [c.label for c in ServiceClass if any(c.label in r for r in rows)]
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    shown = (("ttft_p50", "TTFT p50, ms"), ("ttft_p99", "TTFT p99, ms"), ("longest_gap_p99", "longest pause p99, ms"))
    width = 0.8 / len(classes)
    for axis, (key, title) in zip(axes, shown, strict=True):
        for index, name in enumerate(classes):
            heights = [r.get(name, {}).get(key, 0.0) for r in rows]
            axis.bar([i + width * index for i in range(len(rows))], heights, width, label=name)
        axis.set_xticks([i + 0.3 for i in range(len(rows))], [r["policy"] for r in rows], rotation=40, ha="right")
        axis.set_yscale("log")
        axis.set_title(title)
    axes[0].legend()
    figure.savefig(path, metadata={"Date": None})
