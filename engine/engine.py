"""Engine: the loop of continuous batching, one step at a time.

Joins a scheduler, which decides, and a runner, which computes. Knows nothing of processes, sockets or text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from engine.checks import check_request
from engine.config import EngineConfig
from engine.errors import InvalidParameter
from engine.scheduling.batch import Batch, Outcome
from engine.scheduling.scheduler import Scheduler
from engine.types import Event, Load, ModelInfo, Request

TELL_POSITIONS_EVERY = 0.2  # seconds


class Runner(Protocol):
    """Computes batches. Keeps each slot's tokens, page table and sampling parameters between steps."""

    def execute(self, batch: Batch) -> Outcome:
        """Move pages, put the batch's tokens through the model, sample."""
        ...


class Engine:
    """Scheduler and runner, stepped from outside."""

    def __init__(
        self,
        config: EngineConfig,
        info: ModelInfo,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.info = info
        self.scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._positions_told_at = 0.0
        self._last_step = (0, 0, 0.0)  # decode rows, prefill tokens, seconds

    def submit(self, request: Request) -> None:
        """Queue a request. Raises `RequestRefused` when it can never be served, or its id is in use."""
        check_request(request, self.info)
        if request.id in self.scheduler.requests:
            raise InvalidParameter(f"request id {request.id!r} is in use", param="id")
        self.scheduler.submit(request, self._clock())

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request or one of its choices; its slot and pages are free before the next step."""
        self.scheduler.abort(request_id, self._clock(), choice)

    def step(self) -> list[Event]:
        """Schedule, compute, commit. Returns what happened, in order."""
        began = self._clock()
        batch = self.scheduler.schedule(began)
        if not batch.is_empty:
            outcome = self._runner.execute(batch)
            now = self._clock()
            self.scheduler.commit(batch, outcome, now)
            self._last_step = (len(batch.decodes), sum(c.length for c in batch.chunks), now - began)
        if began - self._positions_told_at >= TELL_POSITIONS_EVERY:
            self._positions_told_at = began
            self.scheduler.tell_positions(began)
        return self.scheduler.take_events()

    @property
    def has_work(self) -> bool:
        """True while a step would do something."""
        return self.scheduler.has_work

    def load(self) -> Load:
        """The books, with the last step's size."""
        decode_rows, prefill_tokens, seconds = self._last_step
        return replace(
            self.scheduler.load(), decode_rows=decode_rows, prefill_tokens=prefill_tokens, step_seconds=seconds
        )
