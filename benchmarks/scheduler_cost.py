"""Cost of scheduling: microseconds of schedule and commit per decode step, by running and waiting requests.

Measures the scheduler alone, with made-up tokens. A step on a GPU takes a few milliseconds; scheduling is part of it or
overlaps with it. The limit is 100 us per step plus 2 us per running sequence, for any number of waiting requests.

    python -m benchmarks.scheduler_cost
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from typing import Any

from benchmarks.results import save, spread
from engine.config import EngineConfig
from engine.scheduling.batch import Sampled, StepOutcome
from engine.scheduling.costs import Costs
from engine.scheduling.policies import make_policy
from engine.scheduling.scheduler import Scheduler
from engine.types import Request, SamplingParams, ServiceClass

RUNNING, WAITING = (1, 64, 256, 1024), (0, 1_000, 100_000)
PROMPT, STEPS = 64, 200
LIMIT_US = (100.0, 2.0)  # per step, per running sequence


def stage(running: int, waiting: int) -> Scheduler:
    """Return a scheduler with `running` decoding sequences, and `waiting` requests of a lower class."""
    config = EngineConfig(model="none", max_num_seqs=running, max_num_batched_tokens=running * PROMPT + 1)
    pages = running * (PROMPT + STEPS + 64) // config.tokens_per_page + running
    policy = make_policy(config, Costs(1e4, 1e3))
    scheduler = Scheduler(config, policy, num_pages=pages, host_pages=0, max_len=4096)
    for number in range(running + waiting):
        request = Request(
            id=str(number),
            prompt=tuple(range(number % 1000, number % 1000 + PROMPT)),
            sampling=SamplingParams(max_tokens=1000, stop_token_ids=(1, 2)),
            service_class=ServiceClass.INTERACTIVE if number < running else ServiceClass.BATCH,
        )
        scheduler.submit(request, 0.0)
    step(scheduler)
    assert len(scheduler.running) == running and len(scheduler.waiting) == waiting
    return scheduler


def step(scheduler: Scheduler) -> float:
    """Run one step with made-up tokens and return the microseconds of schedule and commit."""
    began = time.perf_counter()
    batch = scheduler.schedule(1.0)
    decided = time.perf_counter()
    outcome = StepOutcome(tuple(Sampled(7) for _ in batch.sampled_slots))
    computed = time.perf_counter()
    scheduler.commit(outcome, 1.0)
    scheduler.take_events()
    return 1e6 * (time.perf_counter() - computed + decided - began)


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for run in range(options.runs):
        for running in RUNNING:
            for waiting in WAITING:
                scheduler = stage(running, waiting)
                gc.collect()
                gc.freeze()  # so that collections during the measurement do not walk the waiting requests
                times = [step(scheduler) for _ in range(STEPS)]
                gc.unfreeze()
                rows.append({"run": run, "running": running, "waiting": waiting, "us": statistics.median(times)})
    summary: dict[str, Any] = {}
    for running in RUNNING:
        for waiting in WAITING:
            measured = spread([r["us"] for r in rows if (r["running"], r["waiting"]) == (running, waiting)])
            summary[f"{running} running, {waiting} waiting"] = measured
            limit = LIMIT_US[0] + LIMIT_US[1] * running
            print(
                f"{running:5} running, {waiting:7} waiting: {measured['median']:7.0f} us per step "
                f"({measured['min']:.0f}-{measured['max']:.0f}), limit {limit:.0f}"
            )
    print("Saved to", save("scheduler_cost", {"prompt": PROMPT, "steps": STEPS, "mark_us": LIMIT_US}, rows, summary))


if __name__ == "__main__":
    main()
