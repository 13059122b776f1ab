"""Two live engines behind one router against two simulated ones, at the same arrivals.

The engines are processes of their own, each on half of the cores, as those of `carousel serve --replicas 2`; HTTP and
text are left out, because the simulator has neither. Costs of a step are fitted to the steps of the same run: the speed
of a virtual machine changes within a minute by more than the difference that is looked for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from app.engine_client.channel_clock import ReceivedEvent
from app.engine_client.client import EngineClient
from app.engine_client.machine import machine_shares
from benchmarks.fleet.answers import Answer, first_tokens, percentiles
from benchmarks.fleet.arrivals import Lengths, mixed, output_mean
from benchmarks.fleet.capacity import mixed_capacity
from benchmarks.fleet.fleet import Fleet, FleetShape
from benchmarks.fleet.marks import MAX_LIVE_DIFFERENCE, Mark, print_marks
from benchmarks.results import save, spread
from benchmarks.scheduling.check import fit
from benchmarks.scheduling.load import model
from engine.config import EngineConfig
from engine.ipc import StepResult
from engine.types import ModelInfo, Request

ENGINES, SLOTS, CONTEXT = 2, 8, 2048
LENGTHS = Lengths(prompt=64, output=48)
RATIOS = ("tokens_per_second", "ttft_p50", "ttft_p99", "seconds_mean")


@dataclass(frozen=True, slots=True)
class Frame:
    """End of a step of one engine, on the engine's clock."""

    step: int
    at: float
    decodes: int
    prompt_tokens: int
    demand: int  # requests that are left


class RecordingClient(EngineClient):
    """Client that records the steps of its engines."""

    def __init__(self, config: EngineConfig, engines: int) -> None:
        super().__init__(config, logs=("warning", "text"), shares=machine_shares(config, engines))
        self.frames: list[list[Frame]] = [[] for _ in range(engines)]

    def on_step(self, index: int, events: Iterable[ReceivedEvent], result: StepResult) -> Iterator[None]:
        """Record a step, and pass on its events."""
        load = result.load
        frames, demand = self.frames[index], sum(load.running) + sum(load.waiting) + sum(load.paused)
        frame = Frame(load.counters.steps, result.clock, load.decode_rows, load.prefill_tokens, demand)
        if frames and frames[-1].step == frame.step:  # the earlier one has the admissions of the step
            frames.pop()
        frames.append(frame)
        return super().on_step(index, events, result)


def step_rows(frames: Sequence[Frame]) -> list[list[float]]:
    """Return work and seconds of each step that followed another without a pause, as `fit` reads them."""
    return [
        [1.0, frame.decodes, frame.prompt_tokens, float(frame.prompt_tokens > 0), 0.0, 0.0, 0.0, frame.at - last.at]
        for last, frame in pairwise(frames)
        if last.demand and frame.step == last.step + 1
    ]


async def serve(client: EngineClient, arrivals: Iterable[tuple[float, Request]]) -> list[Answer]:
    """Submit requests at their times and return the answers when all have ended."""
    began = time.perf_counter()
    answers: list[Answer] = []

    def clock() -> float:
        return time.perf_counter() - began

    for at, request in arrivals:
        await asyncio.sleep(max(0.0, at - clock()))
        answer = Answer(request, at, clock)
        answers.append(answer)
        client.submit(request, answer.receive)
    while client.in_flight:  # noqa: ASYNC110  # a sink that wakes a task would cost time between tokens
        await asyncio.sleep(0.05)
    return answers


def _figures(answers: Sequence[Answer]) -> dict[str, float]:
    ended = [(answer.ended_at or 0.0, answer) for answer in answers]
    return {
        "tokens_per_second": sum(answer.tokens for answer in answers) / max(at for at, _ in ended),
        "seconds_mean": statistics.mean(at - answer.at for at, answer in ended),
        **percentiles(first_tokens(answers)),
    }


def _shape(info: ModelInfo, frames: Iterable[Sequence[Frame]]) -> FleetShape:
    """Return a fleet like the live one, with step costs fitted to its steps.

    The fit ignores slow steps as outliers. Here they are part of the cost, since engines share their cores with the
    process that sends requests, so all costs are raised by the ratio of measured to fitted time.
    """
    rows = [row for of_engine in frames for row in step_rows(of_engine)]
    cost = fit(rows)
    fitted = sum(row[0] * cost.step + row[1] * cost.decode + row[2] * cost.prompt + row[3] * cost.chunk for row in rows)
    factor = sum(row[-1] for row in rows) / fitted
    raised = {name: factor * getattr(cost, name) for name in ("step", "decode", "prompt", "chunk")}
    return FleetShape(ENGINES, 1, SLOTS, info.num_pages, info.max_model_len, replace(cost, **raised))


async def _measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    config = EngineConfig(
        model=options.model or model(), max_num_seqs=SLOTS, max_model_len=CONTEXT, enable_prefix_caching=False
    ).validate()
    client = RecordingClient(config, ENGINES)
    await client.start()
    info = await client.ready()
    while not all(member.is_ready for member in client.members):  # noqa: ASYNC110  # the client reports the first
        await asyncio.sleep(0.1)
    rows: list[dict[str, Any]] = []
    try:
        await serve(client, mixed("warm-up", options.warm_up_rate, 5.0, LENGTHS, prefix="w"))
        shape = _shape(info, client.frames)
        rate = options.load * ENGINES * mixed_capacity(shape, LENGTHS)
        print(f"{rate:.1f} requests/s, {rate * output_mean(LENGTHS):.0f} tokens/s", flush=True)
        for run in range(options.runs):
            client.frames = [[] for _ in range(ENGINES)]
            arrivals = list(mixed(f"live{run}", rate, options.seconds, LENGTHS, prefix=f"{run}."))
            live = _figures(await serve(client, arrivals))
            shape = _shape(info, client.frames)
            fleet = Fleet(shape, run)
            fleet.receive(arrivals)
            fleet.run()
            simulated = _figures(fleet.answers)
            ratio = {name: simulated[name] / live[name] for name in RATIOS}
            rows.append({"cost": asdict(shape.cost), "live": live, "simulated": simulated, "ratio": ratio})
            print(json.dumps(rows[-1]), flush=True)
    finally:
        await client.stop()
    return rows


def live(options: argparse.Namespace) -> None:
    """Compare both, save the figures and print the marks."""
    rows = asyncio.run(_measure(options))
    summary = {name: spread([row["ratio"][name] for row in rows]) for name in RATIOS}
    marks = [
        Mark(f"simulated over live, {name}: difference", abs(summary[name]["median"] - 1), MAX_LIVE_DIFFERENCE)
        for name in RATIOS
    ]
    print_marks(marks)
    settings = vars(options) | {"engines": ENGINES, "slots": SLOTS, "lengths": asdict(LENGTHS)}
    save("fleet_live", settings, rows, {**summary, "marks": [asdict(mark) for mark in marks]})
