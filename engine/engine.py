"""Engine: the loop of continuous batching, one step at a time.

Joins a scheduler, which decides, and a runner, which computes. Knows nothing of processes, sockets or text.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from engine.checks import check_request
from engine.config import EngineConfig
from engine.errors import InvalidParameter
from engine.lead import Lead
from engine.scheduling.batch import Batch, Outcome
from engine.scheduling.scheduler import Scheduler
from engine.types import Event, Load, ModelInfo, Request

TELL_POSITIONS_EVERY = 0.2  # seconds


class Runner(Protocol):
    """Computes batches. Keeps each slot's tokens, page table and sampling parameters between steps."""

    @property
    def runs_ahead(self) -> bool:
        """Whether `launch` returns before the step is computed, so that the next one can be decided meanwhile."""

    def launch(self, batch: Batch) -> Callable[[], Outcome]:
        """Begin: move pages, put the batch's tokens through the model, sample. Steps are computed in the order in which
        they were launched. Returns what waits for the outcome."""

    @property
    def ran_dry(self) -> bool:
        """Whether all that was launched before was done by the end of the last launch; asked where it runs ahead."""

    def take_memory(self, pages: int) -> bool:
        """Have the system give some of the memory behind the first `pages` pages, which nobody has held yet: a step
        that is the first to write there waits for it. Takes milliseconds. False: there is none to take for now."""


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
        self._flying: deque[tuple[Batch, float, Callable[[], Outcome]]] = deque()  # launched at, oldest first
        self._landed_at = 0.0
        self._lead = Lead()
        self._busy_seconds = 0.0

    def submit(self, request: Request) -> None:
        """Queue a request. Raises `RequestRefused` when it can never be served, or its id is in use."""
        check_request(request, self.info)
        if request.id in self.scheduler.requests:
            raise InvalidParameter(f"request id {request.id!r} is in use", param="id")
        self.scheduler.submit(request, self._clock())

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request or one of its choices; its slot and pages are free before the next step."""
        self.scheduler.abort(request_id, self._clock(), choice)

    def step(self, tell: Callable[[list[Event]], None] | None = None) -> list[Event]:
        """Schedule and launch a step, and commit one: the same, or the one before where the runner runs ahead, so that
        it never waits for us. Returns what happened, in order. tell: is given what has happened so far, where somebody
        is let in: should the step be the end of us, it is known who was in it."""
        began = self._clock()
        batch = self.scheduler.schedule(began)
        if tell is not None and batch.joins:
            tell(self.scheduler.take_events())
        if not batch.is_empty:
            outcome = self._runner.launch(batch)
            if self._flying:
                before = self._flying[-1][0]
                self._lead.observe(
                    is_recorded=self.scheduler.is_recorded(before),
                    foreseen=self.scheduler.foresee(before),
                    ran_dry=self._runner.ran_dry,
                )
            self._flying.append((batch, began, outcome))
        may_fly = 1 if self._runner.runs_ahead and not batch.is_empty else 0
        while len(self._flying) > may_fly:
            self._land(*self._flying.popleft())
        if began - self._positions_told_at >= TELL_POSITIONS_EVERY:
            self._positions_told_at = began
            self.scheduler.waiting.tell_positions(began)
        return self.scheduler.take_events()

    def take_memory(self) -> bool:
        """For when there is nothing else to do; see `Runner.take_memory`."""
        return self._runner.take_memory(self.scheduler.memory.pool.touched)

    @property
    def has_work(self) -> bool:
        """True while a step would do something."""
        return self.scheduler.has_work or bool(self._flying)

    def seconds_to_step(self) -> float | None:
        """How long nothing needs to be done: None while nobody is there. While a step is computed elsewhere, until the
        next one has to be decided: whoever arrives by then is in it (docs/decisions/0021)."""
        now = self._clock()
        if self._flying:
            batch, launched, _ = self._flying[-1]
            ends_at = max(launched, self._landed_at) + self.scheduler.foresee(batch)
            return max(0.0, ends_at - self._lead.seconds(is_recorded=self.scheduler.is_recorded(batch)) - now)
        return max(0.0, self.scheduler.next_step_at(now) - now) if self.scheduler.has_work else None

    def load(self) -> Load:
        """The books, with the last step's size."""
        decode_rows, prefill_tokens, seconds = self._last_step
        return replace(
            self.scheduler.load(),
            decode_rows=decode_rows,
            prefill_tokens=prefill_tokens,
            step_seconds=seconds,
            step_target=self.scheduler.policy.step_seconds,
            busy_seconds=self._busy_seconds,
        )

    def _land(self, batch: Batch, launched: float, outcome: Callable[[], Outcome]) -> None:
        sampled = outcome()
        now = self._clock()
        self.scheduler.commit(sampled, now)
        seconds = now - max(launched, self._landed_at)
        self._last_step = (len(batch.decodes), batch.prompt_tokens, seconds)
        self._landed_at = now
        self.scheduler.observe(batch, seconds)
        self._busy_seconds += seconds
