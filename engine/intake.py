"""Intake: requests on their way into the engine. Their grammars are compiled first, while steps go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from msgspec.structs import replace

from engine.engine import Engine
from engine.errors import RequestRefused
from engine.request_logging import log_request
from engine.scheduling.sequence import Sequence
from engine.types import EndEvent, Event, FinishReason, Phase, Request, ServiceClass, StatusEvent, WaitReason

log = logging.getLogger("carousel.engine")


class Intake:
    """Submission and abort of requests. As a collection: the IDs of all requests that have not ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._compiling: dict[str, tuple[Request, Future[Any]]] = {}  # requests whose grammars are being compiled
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._compiling) + len(self._engine.scheduler.requests)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._engine.scheduler.requests or request_id in self._compiling

    def __iter__(self) -> Iterator[str]:
        yield from self._compiling
        yield from self._engine.scheduler.requests

    @property
    def is_compiling(self) -> bool:
        """Return whether a request waits for its grammar."""
        return bool(self._compiling)

    def take_events(self) -> list[Event]:
        """Return the events since the last call, in and before the engine."""
        events, self._events = self._engine.scheduler.take_events() + self._events, []
        return events

    def state(self, request_id: str) -> tuple[Request, dict[int, tuple[int, ...]]]:
        """Return a request that has not ended, and the output of each choice that has not."""
        if request_id in self._compiling:
            request, _ = self._compiling[request_id]
            return request, {choice: request.output_so_far.get(choice, ()) for choice in request.choices}
        sequences = self._engine.scheduler.requests[request_id]
        output = {sequence.choice: tuple(sequence.tokens[sequence.prompt_len :]) for sequence in sequences}
        return sequences[0].request, output

    def request(self, request_id: str) -> Request:
        """Return a request that has not ended."""
        if request_id in self._compiling:
            return self._compiling[request_id][0]
        return self._engine.scheduler.requests[request_id][0].request

    def sequence(self, request_id: str) -> Sequence | None:
        """Return the first choice of a request that has reached the engine; it stays readable after its end."""
        sequences = self._engine.scheduler.requests.get(request_id)
        return None if sequences is None else sequences[0]

    def submit(self, request: Request) -> None:
        """Submit a request, or compile its grammar first. A refusal is an event."""
        try:
            compilation = self._engine.constraints.prepare(request) if self._engine.constraints is not None else None
            if compilation is None:
                self._engine.submit(request)
        except RequestRefused as error:
            log_request(log, logging.INFO, request, "refused: %s", error)
            self._events += refusal(request, error)
            return
        if compilation is not None:
            self._compiling[request.id] = request, compilation
            self._events += _compiling_status(request)

    def submit_compiled(self) -> list[Request]:
        """Submit the requests with grammars that were compiled or refused. Returns them."""
        done = [request for request, compilation in self._compiling.values() if compilation.done()]
        for request in done:
            del self._compiling[request.id]
            self.submit(request)
        return done

    def change(self, request_id: str, *, is_paused: bool, service_class: ServiceClass) -> None:
        """Pause or resume a request, and move it to a class."""
        if request_id not in self._compiling:
            self._engine.change(request_id, is_paused=is_paused, service_class=service_class)
            return
        request, compilation = self._compiling[request_id]
        request = replace(request, is_paused=is_paused, service_class=service_class)
        self._compiling[request_id] = request, compilation
        self._events += _compiling_status(request)

    def keep(self, request_id: str, choice: int) -> None:
        """Keep the pages of a choice that asks for a tool."""
        self._engine.keep(request_id, choice)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request or one of its choices."""
        if request_id not in self._compiling:
            self._engine.abort(request_id, choice)
            return
        request, compilation = self._compiling.pop(request_id)
        ended = [index for index in request.choices if choice is None or index == choice]
        for index in ended:
            self._events += [
                StatusEvent(request_id, index, Phase.ENDED, monotonic_time=time.monotonic()),
                EndEvent(request_id, index, FinishReason.ABORT),
            ]
        if left := {index: request.output_so_far.get(index, ()) for index in request.choices if index not in ended}:
            self._compiling[request_id] = replace(request, output_so_far=left), compilation


def refusal(request: Request, error: RequestRefused) -> list[Event]:
    """Return the events of a request that is refused."""
    return [
        EndEvent(request.id, choice, FinishReason.ERROR, str(error), error.code, error.param)
        for choice in request.choices or (0,)
    ]


def _compiling_status(request: Request) -> list[Event]:
    now = time.monotonic()
    phase, cause = (Phase.PAUSED, WaitReason.CLIENT) if request.is_paused else (Phase.QUEUED, WaitReason.GRAMMAR)
    return [StatusEvent(request.id, choice, phase, cause=cause, monotonic_time=now) for choice in request.choices]
