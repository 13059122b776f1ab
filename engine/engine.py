"""Main loop of continuous batching, one step at a time.

Joins a scheduler, which decides, and a runner, which computes. Independent of processes, sockets and text.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from engine.checks import check_request
from engine.config import EngineConfig
from engine.errors import InvalidParameter
from engine.launch_lead import LaunchLead
from engine.load import EngineLoad
from engine.scheduling.batch import Batch, StepOutcome
from engine.scheduling.constraint import ConstraintSource
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.speculation import Speculation
from engine.types import Event, ModelInfo, Request, ServiceClass, Vocabulary, WaitReason

POSITION_REPORT_SECONDS = 0.2
# A step waits for masks of constrained tokens this long, and no longer than a share of the last step.
MIN_MASK_WAIT_SECONDS = 0.001
MASK_WAIT_SHARE = 0.05
IDLE_MASK_WAIT_SECONDS = 0.005  # if there is nothing else to compute


class Runner(Protocol):
    """Executes batches. Keeps each slot's tokens, page table and sampling parameters between steps."""

    @property
    def runs_ahead(self) -> bool:
        """Return whether `launch` returns before the step is computed, so that the next can be scheduled meanwhile."""

    def launch(self, batch: Batch) -> Callable[[], StepOutcome]:
        """Begin a step: move pages, put the batch's tokens through the model, sample.

        Steps are computed in the order of their launches. Returns a function that waits for the outcome.
        """

    @property
    def max_draft_rows(self) -> int:
        """Return the largest number of rows of a step with drafts; 0 if it may have none.

        A runner that `runs_ahead` looks up drafts itself, for sequences whose last token the host does not know.
        """

    @property
    def device_was_idle(self) -> bool:
        """Return whether the device had completed all earlier steps by the end of the last launch.

        Read only if `runs_ahead`.
        """

    def swapped_out(self) -> Callable[[], None]:
        """Return a function that waits until all pages that were swapped out so far are in host memory.

        Any thread may call it.
        """

    def prefault_pages(self, pages: int) -> bool:
        """Make the system provide some of the memory of the first `pages` pages, which have never been held.

        Otherwise the first step that writes there waits for it. Takes milliseconds. Returns False if nothing is left to
        do.
        """


class Work(Protocol):
    """Work on another thread, such as a `concurrent.futures.Future`."""

    def done(self) -> bool:
        """Return whether it has ended, or nobody should wait for it any longer."""


class Preparation(NamedTuple):
    """Work that a request waits for before it is submitted. cause: shown to its client."""

    cause: WaitReason
    work: Work


class _LaunchedStep(NamedTuple):
    """Step that was launched, and is not committed."""

    batch: Batch
    began: float
    host_seconds: float  # for scheduling and launching; a device may have computed the previous step meanwhile
    outcome: Callable[[], StepOutcome]


class Engine:
    """Scheduler and runner, stepped by the caller."""

    def __init__(
        self,
        config: EngineConfig,
        info: ModelInfo,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float] = time.monotonic,
        constraints: ConstraintSource | None = None,
    ) -> None:
        """constraints: None if no request may have any."""
        self.config = config
        self.info = info
        self.scheduler = scheduler
        self.constraints = constraints
        self._runner = runner
        self._clock = clock
        self._positions_reported_at = 0.0
        self._last_step = (0, 0, 0.0)  # decode rows, prefill tokens, seconds
        self._in_flight: deque[_LaunchedStep] = deque()  # the oldest first
        self._committed_at = 0.0
        self._launch_lead = LaunchLead()
        self._busy_seconds = 0.0
        if config.speculation == "auto" and runner.max_draft_rows:
            scheduler.speculation = Speculation(
                scheduler.policy,
                scheduler.counters,
                scheduler.kv_manager,
                max_rows=runner.max_draft_rows,
                runs_ahead=runner.runs_ahead,
            )
        self._announced_trial = ""  # that was current when `on_launch` was last called

    def prepare(self, request: Request, prepared: WaitReason | None = None) -> Preparation | None:
        """Begin the next preparation of a request after `prepared`; None if it can be submitted.

        Raises `RequestRefused` if it can never be served.
        """
        compilation = self.constraints.prepare(request) if self.constraints is not None else None
        if compilation is not None:
            return Preparation(WaitReason.GRAMMAR, compilation)
        kv_manager = self.scheduler.kv_manager
        if kv_manager.disk is None or prepared is WaitReason.DISK:
            return None
        check_request(request, self.info)
        pages = kv_manager.read_from_disk(request, self.scheduler.estimates, self._clock(), self._clock)
        return None if pages is None else Preparation(WaitReason.DISK, pages)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises `RequestRefused` if it can never be served or its ID is in use.

        Waits until its grammar is compiled, unless `prepare` has done so.
        """
        check_request(request, self.info)
        if request.id in self.scheduler.requests:
            raise InvalidParameter(f"id must be unique, but request ID {request.id!r} is in use", param="id")
        constraints = self.constraints.constraints(request) if self.constraints is not None else {}
        self.scheduler.submit(request, self._clock(), constraints)

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Set the model's tokens, which requests with constraints need."""
        if self.constraints is not None:
            self.constraints.use_vocabulary(vocabulary, self.info.vocab_size)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request or one of its choices; its slot and pages are free before the next step."""
        self.scheduler.abort(request_id, self._clock(), choice)

    def change(self, request_id: str, *, is_paused: bool, service_class: ServiceClass) -> None:
        """Pause or resume a request, and move it to a class; a paused one has no slot and no pages."""
        self.scheduler.change(request_id, self._clock(), is_paused=is_paused, service_class=service_class)

    def keep(self, request_id: str, choice: int) -> None:
        """Keep the pages of a choice that asks for a tool, until the tool's result comes back.

        It may have ended: its last tokens and this call cross.
        """
        running = self.scheduler.requests.get(request_id, ())
        if sequence := next((sequence for sequence in running if sequence.choice == choice), None):
            sequence.asks_for_tool = True
        else:
            self.scheduler.kv_manager.sessions.keep(request_id, self._clock())

    @property
    def trial(self) -> str:
        """Return the ID of the request that is computed alone; empty if none is."""
        current = self.scheduler.trials.current
        choices = self.scheduler.requests.get(current)
        is_computed = choices is not None and (not choices[0].request.is_paused or bool(self._in_flight))
        return current if is_computed else ""

    def step(self, on_launch: Callable[[list[Event]], None] | None = None) -> list[Event]:
        """Schedule and launch a step, and commit one: the same step, or the previous one if the runner runs ahead.

        Returns the events in order. `on_launch` receives the events so far if the step admits sequences, or belongs to
        another `trial` than the one before. If the process dies in this step, the receiver then knows which requests
        were in it.
        """
        if self.constraints is not None:
            self.constraints.wait_for_masks(max(MIN_MASK_WAIT_SECONDS, MASK_WAIT_SHARE * self._last_step[2]))
        began = self._clock()
        batch = self.scheduler.schedule(began)
        host_seconds = self._clock() - began
        if on_launch is not None and (batch.joins or self.trial != self._announced_trial):
            self._announced_trial = self.trial
            on_launch(self.scheduler.take_events())
        if not batch.is_empty:
            launching = self._clock()
            outcome = self._runner.launch(batch)
            host_seconds += self._clock() - launching
            if self._in_flight:
                previous = self._in_flight[-1].batch
                self._launch_lead.observe(
                    is_recorded=self.scheduler.estimates.is_recorded(previous),
                    estimated=self.scheduler.estimates.seconds(previous),
                    device_was_idle=self._runner.device_was_idle,
                )
            self._in_flight.append(_LaunchedStep(batch, began, host_seconds, outcome))
        elif not self._in_flight and self.scheduler.waits_for_masks and self.constraints is not None:
            self.constraints.wait_for_any_mask(IDLE_MASK_WAIT_SECONDS)
        disk = self.scheduler.kv_manager.disk
        if disk is not None and disk.has_runs:
            disk.write(self._runner.swapped_out())
        max_in_flight = 1 if self._runner.runs_ahead and not batch.is_empty else 0
        while len(self._in_flight) > max_in_flight:
            self._commit(self._in_flight.popleft())
        if began - self._positions_reported_at >= POSITION_REPORT_SECONDS:
            self._positions_reported_at = began
            self.scheduler.waiting.report_positions(began)
        return self.scheduler.take_events()

    def prefault_pages(self) -> bool:
        """Prefault pages when the engine is idle; see `Runner.prefault_pages`."""
        return self._runner.prefault_pages(self.scheduler.kv_manager.pool.num_touched)

    @property
    def has_work(self) -> bool:
        """Return whether a step would do something."""
        return self.scheduler.has_work or bool(self._in_flight)

    def seconds_to_step(self) -> float | None:
        """Return the seconds until the next step has to be scheduled; None if there is nothing to do.

        While a step is computed on a device, this is as late as the device allows, so that requests that arrive
        meanwhile join the next step (docs/decisions/0021).
        """
        now = self._clock()
        if self._in_flight:
            step, estimates = self._in_flight[-1], self.scheduler.estimates
            ends_at = max(step.began, self._committed_at) + estimates.seconds(step.batch)
            return max(0.0, ends_at - self._launch_lead.seconds(is_recorded=estimates.is_recorded(step.batch)) - now)
        seconds = max(0.0, self.scheduler.next_step_at(now) - now) if self.scheduler.has_work else None
        disk = self.scheduler.kv_manager.disk
        if seconds == 0.0 or disk is None or (writing := disk.seconds_to_step()) is None:
            return seconds
        return writing if seconds is None else min(seconds, writing)

    def load(self) -> EngineLoad:
        """Return the load and counters, with the size of the last step."""
        decode_rows, prefill_tokens, seconds = self._last_step
        return replace(
            self.scheduler.load(),
            decode_rows=decode_rows,
            prefill_tokens=prefill_tokens,
            step_seconds=seconds,
            step_target=self.scheduler.policy.step_seconds,
            busy_seconds=self._busy_seconds,
            prompt_pace=self.scheduler.estimates.prompt_pace(len(self.scheduler.running)),
        )

    def _commit(self, step: _LaunchedStep) -> None:
        batch, result = step.batch, step.outcome()
        now = self._clock()
        self.scheduler.commit(result, now)
        # Steps on a device are committed when the next one is scheduled, at the time that the estimates of their
        # durations say. Durations measured here would therefore confirm estimates that are too long.
        if result.seconds is None:
            seconds = now - max(step.began, self._committed_at)
        else:
            seconds = max(result.seconds, step.host_seconds)
        self._last_step = (batch.rows, batch.prompt_tokens, seconds)
        self._committed_at = now
        self.scheduler.estimates.observe(batch, seconds)
        self._busy_seconds += seconds
