"""Trials: requests that may have ended an engine, and are computed alone until they have made progress.

A trial gets its slot and pages from the policy like any request, and is computed in slices. In a slice the engine
computes no other request; they stay in their slots. Between slices the engine computes the others and no trial, so that
every step is computed either for one trial or for no trial. A slice begins and ends only when no step is in flight: the
requests that a step may harm are known before it is computed (`Engine.step`).

The pause of others is bounded: by the length of a slice at a time, and by a share of the time altogether, for the
trials of all tenants together. These take turns, slice by slice. Knows no clock and no text.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from engine.progress import has_progressed
from engine.request_logging import log_request
from engine.scheduling.counters import CumulativeCounters
from engine.scheduling.events import EventBuffer
from engine.scheduling.sequence import Sequence
from engine.types import Request

log = logging.getLogger("carousel.engine")

MAX_SLICE_SECONDS = 0.25  # for which one trial is computed while others wait; its last step may exceed it
TRIAL_SHARE = 4  # one in this many seconds at most belongs to trials while others wait


@dataclass(slots=True)
class _Trial:
    request: Request
    slices: int = 0
    tokens: int = 0  # generated in them


class Trials:
    """Requests on trial in order of arrival, and the one that has the current slice."""

    def __init__(self, events: EventBuffer, counters: CumulativeCounters) -> None:
        self.current = ""  # ID of the request that is computed alone; empty: none
        self.is_draining = False  # nothing is computed in this step: the ones in flight are committed first
        self._events = events
        self._counters = counters
        self._pending: dict[str, _Trial] = {}
        self._turns: dict[str, int] = {}  # serial number of the last slice of each tenant with trials
        self._now = 0.0  # of the last step
        self._began = 0.0  # of the slice
        self._paused = 0.0  # seconds of the slice in which others waited
        self._has_others = False
        self._rest_until = 0.0  # others are computed until then

    # Between steps ------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Add a request that has arrived."""
        self._pending[request.id] = _Trial(request)
        self._turns.setdefault(request.tenant, 0)

    def change(self, request: Request) -> None:
        """Note the new state of a request, if it is on trial."""
        if (trial := self._pending.get(request.id)) is not None:
            trial.request = request

    def remove(self, request_id: str) -> None:
        """Remove a request that has ended or has made progress, if it is on trial."""
        if (trial := self._pending.pop(request_id, None)) is None:
            return
        tenant = trial.request.tenant
        if not any(each.request.tenant == tenant for each in self._pending.values()):
            del self._turns[tenant]

    def count_tokens(self, tokens: int, choices: Collection[Sequence]) -> None:
        """Count tokens of the current trial, which is an ordinary request once it has made progress.

        choices: of its request, that have not ended.
        """
        if (trial := self._pending.get(self.current)) is None:
            return
        trial.tokens += tokens
        if choices and has_progressed(trial.tokens, len(choices)):
            log_request(log, logging.INFO, trial.request, "it has made progress alone, and goes on beside others")
            self.remove(self.current)

    # A step -------------------------------------------------------------------------------------------------------

    def computed(self, running: list[Sequence], now: float, *, is_in_flight: bool) -> list[Sequence]:
        """Return the running sequences that can be in this step, and report those that a trial holds up.

        is_in_flight: earlier steps are not committed, so that only steps of the same trial, or of none, can follow.
        """
        self._count_pause(now)
        self.is_draining = self._has_others = False
        if self.current or self._pending:
            self._choose(running, is_in_flight)
        if self.is_draining:
            return []
        held = [sequence for sequence in running if self.is_held(sequence)] if self._pending else []
        self._events.trial_wait(held, now)
        return [sequence for sequence in running if not self.is_held(sequence)] if held else running

    def is_held(self, sequence: Sequence) -> bool:
        """Return whether a sequence is not computed in this step."""
        name = sequence.request.id
        return self.is_draining or (name != self.current if self.current else name in self._pending)

    # Internals ----------------------------------------------------------------------------------------------------

    def _count_pause(self, now: float) -> None:
        if self.current and self._has_others:
            self._paused += now - self._now
            self._counters.add("trial_pause_microseconds", round(1e6 * (now - self._now)))
        self._now = now

    def _choose(self, running: list[Sequence], is_in_flight: bool) -> None:
        """Choose the trial that this step belongs to, if any."""
        names = {sequence.request.id for sequence in running}
        ready = [trial for name, trial in self._pending.items() if name in names]  # in order of arrival
        self._has_others = len(names) > len(ready)
        is_over = self._is_over(ready)
        chosen = self._next(ready) if is_over else self.current
        self.is_draining = is_over and is_in_flight and chosen != self.current
        if is_over and not self.is_draining:
            self._begin_slice(chosen)

    def _is_over(self, ready: list[_Trial]) -> bool:
        """Return whether the slice, or the time without one, ends. ready: trials that have a slot."""
        if not any(trial.request.id == self.current for trial in ready):
            return True
        is_alone = len(ready) == 1 and not self._has_others
        return not is_alone and self._now - self._began >= MAX_SLICE_SECONDS

    def _next(self, ready: list[_Trial]) -> str:
        """Return the trial that has the next slice: by class, then tenants in turn; empty if others go first."""
        if not ready or (self._has_others and (self.current or self._now < self._rest_until)):
            return ""
        trial = min(ready, key=lambda each: (each.request.service_class, self._turns[each.request.tenant]))
        return trial.request.id

    def _begin_slice(self, chosen: str) -> None:
        if self.current:
            self._rest_until = self._now + (TRIAL_SHARE - 1) * self._paused
        self.current, self._began, self._paused = chosen, self._now, 0.0
        if not chosen:
            return
        trial = self._pending[chosen]
        self._turns[trial.request.tenant] = 1 + max(self._turns.values())
        trial.slices += 1
        if trial.slices == 1:
            self._counters.add("trials")
            log_request(log, logging.WARNING, trial.request, "it may have ended an engine, so it is computed alone")
