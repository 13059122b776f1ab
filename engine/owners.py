"""Owners: the connection or orphan that each request in flight belongs to. Independent of sockets.

A request belongs to the connection that submitted it. If that is lost, the request is an orphan for a grace: its
computation goes on and its events are kept, until the same request is submitted again or adopted. An orphan continues
only for a new owner that has the beginning of its output; otherwise it ends and the request is computed from the
submitted output, which gives the same text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import cast

from engine.connection import Connection
from engine.engine import Engine
from engine.errors import RequestInFlight
from engine.intake import Intake, refusal
from engine.ipc import Adopted, EngineRequest, NotFound
from engine.orphans import Orphan
from engine.types import Event, Request

log = logging.getLogger("carousel.engine")


class Owners:
    """Requests in flight by owner. An event is appended to its owner's list, for one look-up."""

    def __init__(self, engine: Engine, intake: Intake, grace_seconds: float, clock: Callable[[], float]) -> None:
        """grace_seconds: for which a request without a connection goes on."""
        self._engine = engine
        self._intake = intake
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._owners: dict[str, list[Event]] = {}  # `events` of a connection or an orphan, by request
        self._orphans: dict[str, Orphan] = {}  # including those that have ended

    def route(self, events: Sequence[Event]) -> None:
        """Give each event to the owner of its request, and forget requests that have ended."""
        owners = self._owners
        for event in events:
            owners[event.request_id].append(event)
        if len(owners) > len(self._intake):
            # These events have ends. The other requests are not read: there may be many.
            for request_id in {event.request_id for event in events}:
                if request_id not in self._intake:
                    del owners[request_id]

    def submit(self, connection: Connection, request: Request) -> None:
        """Submit a request, or continue the orphan that it is."""
        if (orphan := self._orphans.get(request.id)) is not None:
            self.route(self._intake.take_events())
            output = {choice: request.output_so_far.get(choice, ()) for choice in request.choices}
            if (events := orphan.events_after(output, self._clock())) is not None:
                for choice in orphan.choices_without(output):
                    self._intake.abort(request.id, choice)
                self._continue(orphan, connection, events)
                return
            self._end_orphan(request.id)
        owner = self._owners.get(request.id)
        if owner is not None and owner is not connection.events:
            error = RequestInFlight(f"request {request.id!r} is computed for another connection", param="id")
            connection.events += refusal(request, error)
            return
        self._owners[request.id] = connection.events
        self._intake.submit(request)

    def abort(self, connection: Connection, request_id: str, choice: int | None) -> None:
        """End a request of a connection, or one of its choices."""
        if self._owners.get(request_id) is connection.events:
            self._intake.abort(request_id, choice)

    def adopt(self, connection: Connection, request_id: str) -> None:
        """Give an orphan to a connection, with its output so far."""
        self.route(self._intake.take_events())
        orphan = self._orphans.get(request_id)
        if orphan is None or (events := orphan.events_after(orphan.output, self._clock())) is None:
            connection.send(NotFound(request_id))
            return
        connection.send(Adopted(cast(EngineRequest, orphan.request), orphan.output))  # its moments are on this clock
        self._continue(orphan, connection, events)

    def lose(self, connection: Connection) -> None:
        """Make orphans of the requests of a lost connection."""
        lost = [request_id for request_id, owner in self._owners.items() if owner is connection.events]
        for request_id in lost:
            request, output = self._intake.state(request_id)
            orphan = Orphan(request, output, connection.process, self._clock() + self._grace_seconds)
            self._orphans[request_id], self._owners[request_id] = orphan, orphan.events
        if connection.process:
            message = "the connection to API process %s is closed: %s; requests that go on for %g s without it: %d"
            level = logging.WARNING if lost else logging.INFO
            log.log(level, message, connection.process, connection.loss, self._grace_seconds, len(lost))

    def release(self, process: str) -> None:
        """End the orphans of an API process."""
        for request_id in [name for name, orphan in self._orphans.items() if orphan.process == process]:
            self._end_orphan(request_id)

    def expire(self) -> None:
        """End the orphans after their grace."""
        now = self._clock()
        for request_id in [name for name, orphan in self._orphans.items() if orphan.expires_at <= now]:
            self._end_orphan(request_id)

    @property
    def has_requests(self) -> bool:
        """Return whether any request belongs to a connection."""
        return any(request_id not in self._orphans for request_id in self._owners)

    def _continue(self, orphan: Orphan, connection: Connection, events: list[Event]) -> None:
        """Give an orphan to a connection, with its current phase and the events that the new owner lacks."""
        request_id = orphan.request.id
        del self._orphans[request_id]
        if request_id in self._owners:
            self._owners[request_id] = connection.events
            self._engine.scheduler.report_status(request_id, self._clock())
            self.route(self._intake.take_events())
        connection.events += events

    def _end_orphan(self, request_id: str) -> None:
        self._intake.abort(request_id)
        self.route(self._intake.take_events())
        del self._orphans[request_id]
