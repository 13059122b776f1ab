"""Cost of scheduling: microseconds of schedule and commit per decode step, by running and waiting requests.

Also of a request of one token whose pages are evicted from others, by the sessions that are kept (docs/decisions/0069).

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
SESSIONS = (0, 100, 10_000)
SESSION_PROMPT, SESSION_REQUESTS = 256, 400  # tokens, requests that are measured


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


def stage_sessions(sessions: int) -> Scheduler:
    """Return an idle scheduler whose cache is full: half of it with pages of sessions, as many as there are at most."""
    config = EngineConfig(model="none", max_num_seqs=1)
    pages = 2 * max(SESSIONS) * (SESSION_PROMPT // config.tokens_per_page)
    policy = make_policy(config, Costs(1e4, 1e3))
    scheduler = Scheduler(config, policy, num_pages=pages, host_pages=0, max_len=4096)
    for number in range(2 * max(SESSIONS)):
        turn_over(scheduler, number, session_seconds=300.0 if number < sessions else 0.0)
    return scheduler


def turn_over(scheduler: Scheduler, number: int, session_seconds: float = 0.0) -> float:
    """Serve a request of one token, and return the microseconds of its steps."""
    first = number * SESSION_PROMPT
    request = Request(
        id=str(number),
        prompt=tuple(range(first, first + SESSION_PROMPT)),
        sampling=SamplingParams(max_tokens=1),
        session_seconds=session_seconds,
    )
    scheduler.submit(request, 0.0)
    took = 0.0
    while scheduler.requests:
        took += step(scheduler)
    return took


def measure_sessions(runs: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return rows and summary of the turnover of requests beside sessions."""
    rows: list[dict[str, Any]] = []
    for run in range(runs):
        for sessions in SESSIONS:
            scheduler = stage_sessions(sessions)
            gc.collect()
            gc.freeze()
            times = [turn_over(scheduler, 3 * max(SESSIONS) + number) for number in range(SESSION_REQUESTS)]
            gc.unfreeze()
            rows.append({"run": run, "sessions": sessions, "us": statistics.median(times)})
    summary = {}
    for sessions in SESSIONS:
        measured = spread([row["us"] for row in rows if row["sessions"] == sessions])
        summary[f"{sessions} sessions"] = measured
        bounds = f"({measured['min']:.0f}-{measured['max']:.0f})"
        print(f"{sessions:6} sessions: {measured['median']:.0f} us per request {bounds}")
    return rows, summary


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
    more, beside_sessions = measure_sessions(min(options.runs, 2))
    settings = {"prompt": PROMPT, "steps": STEPS, "mark_us": LIMIT_US, "session_prompt": SESSION_PROMPT}
    print("Saved to", save("scheduler_cost", settings, rows + more, summary | beside_sessions))


if __name__ == "__main__":
    main()
