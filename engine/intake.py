"""Intake: requests on their way into the engine. While steps go on, each is prepared: its grammar is compiled, and what
the engine has on disk of its prompt is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from engine.engine import Engine, Preparation
from engine.errors import RequestRefused
from engine.request_logging import log_request
from engine.scheduling.sequence import Sequence
from engine.types import EndEvent, Event, FinishReason, Phase, Request, ServiceClass, StatusEvent, WaitReason

log = logging.getLogger("carousel.engine")


class _Preparing(NamedTuple):
    """Request that waits for its preparation."""

    request: Request
    preparation: Preparation


class Intake:
    """Submission and abort of requests. As a collection: the IDs of all requests that have not ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._preparing: dict[str, _Preparing] = {}
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._preparing) + len(self._engine.scheduler.requests)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._engine.scheduler.requests or request_id in self._preparing

    def __iter__(self) -> Iterator[str]:
        yield from self._preparing
        yield from self._engine.scheduler.requests

    @property
    def is_preparing(self) -> bool:
        """Return whether a request is being prepared."""
        return bool(self._preparing)

    def take_events(self) -> list[Event]:
        """Return the events since the last call, in and before the engine."""
        events, self._events = self._engine.scheduler.take_events() + self._events, []
        return events

    def state(self, request_id: str) -> tuple[Request, dict[int, tuple[int, ...]]]:
        """Return a request that has not ended, and the output of each choice that has not."""
        if request_id in self._preparing:
            request = self._preparing[request_id].request
            return request, {choice: request.output_so_far.get(choice, ()) for choice in request.choices}
        sequences = self._engine.scheduler.requests[request_id]
        output = {sequence.choice: tuple(sequence.tokens[sequence.prompt_len :]) for sequence in sequences}
        return sequences[0].request, output

    def request(self, request_id: str) -> Request:
        """Return a request that has not ended."""
        if request_id in self._preparing:
            return self._preparing[request_id].request
        return self._engine.scheduler.requests[request_id][0].request

    def sequence(self, request_id: str) -> Sequence | None:
        """Return the first choice of a request that has reached the engine; it stays readable after its end."""
        sequences = self._engine.scheduler.requests.get(request_id)
        return None if sequences is None else sequences[0]

    def submit(self, request: Request, prepared: WaitReason | None = None) -> None:
        """Submit a request, or prepare it first. A refusal is an event. prepared: the preparation that has ended."""
        try:
            preparation = self._engine.prepare(request, prepared)
            if preparation is None:
                self._engine.submit(request)
        except RequestRefused as error:
            log_request(log, logging.INFO, request, "refused: %s", error)
            self._events += refusal(request, error)
            return
        if preparation is not None:
            self._preparing[request.id] = _Preparing(request, preparation)
            self._events += _preparing_status(request, preparation.cause)

    def submit_prepared(self) -> list[Request]:
        """Submit the requests whose preparation has ended. Returns them."""
        done = [waiting for waiting in self._preparing.values() if waiting.preparation.work.done()]
        for request, preparation in done:
            del self._preparing[request.id]
            self.submit(request, preparation.cause)
        return [waiting.request for waiting in done]

    def change(self, request_id: str, *, is_paused: bool, service_class: ServiceClass) -> None:
        """Pause or resume a request, and move it to a class."""
        if request_id not in self._preparing:
            self._engine.change(request_id, is_paused=is_paused, service_class=service_class)
            return
        request, preparation = self._preparing[request_id]
        request = replace(request, is_paused=is_paused, service_class=service_class)
        self._preparing[request_id] = _Preparing(request, preparation)
        self._events += _preparing_status(request, preparation.cause)

    def keep(self, request_id: str, choice: int) -> None:
        """Keep the pages of a choice that asks for a tool."""
        self._engine.keep(request_id, choice)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request or one of its choices."""
        if request_id not in self._preparing:
            self._engine.abort(request_id, choice)
            return
        request, preparation = self._preparing.pop(request_id)
        ended = [index for index in request.choices if choice is None or index == choice]
        for index in ended:
            self._events += [
                StatusEvent(request_id, index, Phase.ENDED, monotonic_time=time.monotonic()),
                EndEvent(request_id, index, FinishReason.ABORT),
            ]
        if left := {index: request.output_so_far.get(index, ()) for index in request.choices if index not in ended}:
            self._preparing[request_id] = _Preparing(replace(request, output_so_far=left), preparation)


def refusal(request: Request, error: RequestRefused) -> list[Event]:
    """Return the events of a request that is refused."""
    return [
        EndEvent(request.id, choice, FinishReason.ERROR, str(error), error.code, error.param)
        for choice in request.choices or (0,)
    ]


def _preparing_status(request: Request, cause: WaitReason) -> list[Event]:
    now, phase = time.monotonic(), Phase.QUEUED
    if request.is_paused:
        phase, cause = Phase.PAUSED, WaitReason.CLIENT
    return [StatusEvent(request.id, choice, phase, cause=cause, monotonic_time=now) for choice in request.choices]
