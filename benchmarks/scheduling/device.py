"""Interactive requests next to a backlog on a simulated asynchronous device, relative to interactive requests alone.

Compares policies, and steps decided early with steps decided late. The costs are plausible for a GPU but not measured;
the comparison is about the effect of the scheduling rules.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product
from typing import Any

from benchmarks.results import save
from benchmarks.tally import Tally
from engine.config import EngineConfig
from engine.engine import Engine
from engine.execution.graphs import MAX_PROMPT_ROWS
from engine.simulation import StepCost, simulate
from engine.types import Request, SamplingParams, ServiceClass

SLOTS, PAGES, PAGE = 256, 10_240, 64
# Llama-3.2-1B on an H100, at 3 TB/s and half of the peak rate of its matrix units.
GIVEN = StepCost(
    step=0.0, decode_pass=0.0009, decode=6e-6, prompt=5e-6, chunk=0.0009, context=32_768 / 2.5e12, swapped_page=1e-6,
    host=0.0006, host_prompts=0.0015, recorded=SLOTS + MAX_PROMPT_ROWS,
)  # fmt: skip
SHORTEST, LONGEST = 100, 1024  # tokens of prompts and of answers of bulk work
NUM_INTERACTIVE, ANSWER = 100, 64
BACKLOGS = {"young": (1600, 3.0), "overdue": (12_000, 125.0)}  # requests, and the start of interactive ones in seconds


class EagerEngine(Engine):
    """Engine that decides each step as soon as the previous one has ended."""

    def seconds_to_step(self) -> float | None:
        """Return 0 while a step is in flight, so that the next step is decided at once."""
        return 0.0 if self._in_flight else super().seconds_to_step()


VARIANTS: dict[str, tuple[dict[str, Any], Callable[..., Engine]]] = {
    "carousel": ({}, Engine),
    "carousel, decided at once": ({}, EagerEngine),
    "carousel, --max-step-slowdown inf": ({"max_step_slowdown": float("inf")}, Engine),
    "vllm": ({"scheduling_policy": "vllm"}, Engine),
    "vllm, decided at once": ({"scheduling_policy": "vllm"}, EagerEngine),
}


def _arrivals(tally: Tally, prompt: int, bulk: int, at: float) -> Iterator[tuple[float, Request]]:
    """Yield bulk requests at time 0, and interactive requests from `at` on, one after another."""
    dice = random.Random(0)

    def ask(name: str, at: float, tokens: int, answer: int, of: ServiceClass) -> tuple[float, Request]:
        ids = tuple(dice.choices(range(1000), k=tokens))
        sampling = SamplingParams(max_tokens=answer)
        return tally.arrive(at, Request(id=name, prompt=ids, sampling=sampling, service_class=of))

    for number in range(bulk):
        sizes = dice.randint(SHORTEST, LONGEST), dice.randint(SHORTEST, LONGEST)
        yield ask(f"b{number}", 0.0, *sizes, ServiceClass.BATCH)
    for number in range(NUM_INTERACTIVE):
        at += dice.uniform(0.2, 0.25)
        yield ask(f"p{number}", at, prompt, ANSWER, ServiceClass.INTERACTIVE)


def _served(way: str, prompt: int, bulk: int, at: float) -> dict[str, Any]:
    options, make = VARIANTS[way]
    config = EngineConfig(model="none", max_num_seqs=SLOTS, page_size=PAGE, **options).validate()
    tally = Tally()
    engine = simulate(
        config,
        GIVEN,
        _arrivals(tally, prompt, bulk, at),
        tally.take,
        num_pages=PAGES,
        host_pages=PAGES,
        engine_factory=make,
    )
    return tally.figures(engine.load().busy_seconds)


def device(options: argparse.Namespace) -> None:
    """Simulate each variant, interactive prompt length and age of the backlog, and save one row for each."""
    rows = []
    for prompt, (backlog, (bulk, at)) in product(options.prompts, BACKLOGS.items()):
        alone = _served("carousel", prompt, 0, at)["interactive"]
        for way in VARIANTS:
            found = _served(way, prompt, bulk, at)
            people = found["interactive"]
            row = {"way": way, "backlog": backlog, "prompt": prompt}
            row |= {"ttft_alone": alone["ttft_p50"], "itl_p99_alone": alone["itl_p99"]}
            row |= {key: people[key] for key in ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "itl_max")}
            row |= {f"{key}_ratio": people[key] / alone[key] for key in ("ttft_p50", "itl_p50", "itl_p99")}
            row["tokens_per_second"] = found["tokens_per_second"]
            rows.append(row)
            shown = (f"{key} {one:.4g}" if isinstance(one, float) else str(one) for key, one in row.items())
            print(", ".join(shown), flush=True)
    save("scheduling_device", vars(options) | {"cost": asdict(GIVEN), "slots": SLOTS}, rows, {})
