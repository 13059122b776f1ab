"""Cost of drafting: the share of a step's time that it takes, and the memory of its tables. Part of speculation.py.

The time is that of looking for drafts, choosing and indexing them, learning from them, and keeping an answer. What a
step takes longer because it has drafts is no part of it: ratios of tokens a second contain that.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from engine.drafting.speculator import Speculator
from engine.engine import Engine
from engine.scheduling.batch import Chunk, Sampled, StepOutcome
from engine.scheduling.sequence import Sequence
from engine.scheduling.speculation import INDEXED_TOKENS, MIN_ROW_SHARE, Speculation
from engine.scheduling.step_in_flight import StepInFlight
from engine.types import Request, TokenEvent

MAX_SHARE = 0.03  # of a step's time: the mark
MAX_BYTES = 64  # per token of context: the mark
CONTEXT = 8192  # tokens
VOCABULARY = 1 << 15
Rows = Literal["measured", "free"]
ROWS: tuple[Rows, ...] = ("measured", "free")
Publish = Callable[[Sequence, list[int], int], None]


class MeasuredSpeculation(Speculation):
    """Speculation that measures its own time.

    seconds: spent for steps. ending_seconds: spent at the ends of answers.
    """

    seconds = 0.0
    ending_seconds = 0.0
    rows: Rows = "measured"  # free: rows are taken to cost as little as possible, so that most steps have drafts

    def begin(self, rows: Rows) -> None:
        """Measure another run. The answers and times of earlier ones are kept."""
        self.rows = rows
        self.ending_seconds = 0.0

    def propose(self, sequence: Sequence, most: int) -> tuple[tuple[int, ...], int]:
        """Return a draft of a sequence with a constraint; see `Speculation.propose`."""
        began = time.perf_counter()
        proposal = super().propose(sequence, most)
        self.seconds += time.perf_counter() - began
        return proposal

    def divide(self, decodes: list[Sequence], chunks: list[Chunk]) -> tuple[list[Sequence], list[Chunk]]:
        """Return the sequences without drafts and the chunks with some; see `Speculation.divide`."""
        began = time.perf_counter()
        divided = super().divide(decodes, chunks)
        self.seconds += time.perf_counter() - began
        return divided

    def remember(self, sequence: Sequence) -> None:
        """Keep the answer of a sequence that has ended."""
        began = time.perf_counter()
        super().remember(sequence)
        self.ending_seconds += time.perf_counter() - began

    def further_tokens(
        self, flight: StepInFlight, outcome: StepOutcome, publish: Publish, outgrown: list[Sequence]
    ) -> Iterator[tuple[Sequence, Sampled]]:
        """Yield the tokens beyond the first. The time of the caller and of `publish`, which any token takes, is not
        counted."""

        def uncounted(sequence: Sequence, table: list[int], computed: int) -> None:
            began = time.perf_counter()
            publish(sequence, table, computed)
            self.seconds -= time.perf_counter() - began

        further = super().further_tokens(flight, outcome, uncounted, outgrown)
        while True:
            began = time.perf_counter()
            found = next(further, None)
            self.seconds += time.perf_counter() - began
            if found is None:
                return
            yield found

    def _costs(self, decodes: int) -> tuple[float, float]:
        seconds, row_seconds = super()._costs(decodes)
        return seconds, row_seconds if self.rows == "measured" else MIN_ROW_SHARE * seconds


@dataclass
class StepCosts:
    """Steps in which all streams of a run decode, and the time that drafting took in them."""

    steps: int = 0
    step_seconds: float = 0.0
    drafting_seconds: float = 0.0

    @classmethod
    def measure(cls, engine: Engine, submitted: list[Request]) -> StepCosts:
        """Run simultaneous requests of an engine with `MeasuredSpeculation`.

        The ends of all answers count, though most are in steps after the first one.
        """
        speculation = engine.scheduler.speculation
        assert isinstance(speculation, MeasuredSpeculation)
        costs, not_begun, has_ended = cls(), {request.id for request in submitted}, False
        for request in submitted:
            engine.submit(request)
        while engine.has_work:
            counts, before, began = not not_begun and not has_ended, speculation.seconds, time.perf_counter()
            events = engine.step()
            if counts:
                costs.steps += 1
                costs.step_seconds += time.perf_counter() - began
                costs.drafting_seconds += speculation.seconds - before
            for event in events:
                if isinstance(event, TokenEvent):
                    not_begun.discard(event.request_id)
                    has_ended |= event.finish is not None
        costs.drafting_seconds += speculation.ending_seconds
        return costs


def shares(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return medians of the share of the steps' time that drafting took, and of both times in microseconds a step."""
    return {
        "share": statistics.median([row["drafting_seconds"] / row["step_seconds"] for row in rows]),
        "drafting_us": 1e6 * statistics.median([row["drafting_seconds"] / row["steps"] for row in rows]),
        "step_us": 1e6 * statistics.median([row["step_seconds"] / row["steps"] for row in rows]),
        "drafts_a_step": sum(row["drafted"] for row in rows) / sum(row["all_steps"] for row in rows),
    }


def cost_marks(summary: dict[str, Any]) -> dict[str, bool]:
    """Return whether drafting takes little time with each kind of answers, and little memory."""
    tables, *cases = summary["bytes per token of context"], *(one for one in summary.values() if "share" in one)
    return {
        "share of time": all(one["share"] <= MAX_SHARE for one in cases),
        "bytes per token": sum(tables.values()) <= MAX_BYTES,
    }


def table_bytes(context: int = CONTEXT) -> dict[str, float]:
    """Return the bytes per token of context that the drafts of one sequence take once all its tokens are indexed.

    The prediction has as many tokens as the context, and its request holds them while there is one.
    """

    def random_tokens() -> list[int]:
        return [random.randrange(VOCABULARY) for _ in range(context)]

    def indexed(predicted: tuple[int, ...]) -> Speculator:
        speculator = Speculator(tokens, predicted, len(tokens))
        while speculator.lookup.index(INDEXED_TOKENS) or (
            speculator.prediction and speculator.prediction.read(context)
        ):
            pass
        return speculator

    tokens, predicted = random_tokens(), tuple(random_tokens())
    own, both = _held(lambda: indexed(())), _held(lambda: indexed(predicted))
    request = _held(lambda: tuple(random_tokens()))
    return {"own text": own / context, "prediction": (both - own) / context, "its tokens": request / context}


def _held(build: Callable[[], object]) -> int:
    """Return the bytes that an object and its parts hold, without those that existed before."""
    tracemalloc.start()
    try:
        built = build()
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        del built
        return held
    finally:
        tracemalloc.stop()
