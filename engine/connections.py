"""Connections: the API processes that an engine serves, and the way of each request's events to one of them."""

from __future__ import annotations

import selectors
import time
from collections.abc import Collection, Iterable

from engine.clock import engine_time
from engine.connection import Connection
from engine.ipc import ChannelClosed, StepResult, ToEngine
from engine.types import EngineLoad, Event, Snapshot

SELECTOR_TICK_SECONDS = 0.001  # a selector rounds its timeout up to a multiple of this


class Connections:
    """Open connections, and the owner of each request in flight.

    The owner of a request is a list of events: that of a connection, or that of an orphan. Events of a step cost one
    look-up each. No step waits for a connection.
    """

    def __init__(self, *connections: Connection) -> None:
        self.all: list[Connection] = []
        self._owners: dict[str, list[Event]] = {}
        self._lost: list[Connection] = []
        self._has_newcomers = False  # connections that have not received a load report
        self._selector = selectors.DefaultSelector()
        for connection in connections:
            self.add(connection)

    def add(self, connection: Connection) -> None:
        """Serve a connection."""
        self.all.append(connection)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._has_newcomers = True

    def close(self) -> None:
        """Close all connections."""
        self._selector.close()
        for connection in self.all:
            connection.close()

    # Messages -------------------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None) -> list[tuple[Connection, ToEngine]]:
        """Return messages that have arrived or arrive within `timeout` seconds (None: no limit), with their senders.

        May return nothing, also before the timeout. Raises `ChannelClosed` if no connection is left.
        """
        self._drop_lost()
        if not self.all:
            raise ChannelClosed
        if timeout is not None:
            ticks = int(timeout / SELECTOR_TICK_SECONDS)
            if timeout and not ticks:  # a message that arrives meanwhile is read below, early enough
                time.sleep(timeout)
            timeout = max(0.0, ticks - 0.5) * SELECTOR_TICK_SECONDS  # the selector rounds it up to `ticks`
        if any(connection.has_unread for connection in self.all):
            timeout = 0.0
        for connection in self.all:
            events = selectors.EVENT_READ | (0 if connection.is_drained else selectors.EVENT_WRITE)
            self._selector.modify(connection.socket, events, connection)
        ready = {key.data for key, mask in self._selector.select(timeout) if mask & selectors.EVENT_READ}
        messages: list[tuple[Connection, ToEngine]] = []
        for connection in self.all:
            connection.flush()
            if connection in ready or connection.has_unread:
                messages += [(connection, message) for message in connection.read()]
        return messages

    def take_lost(self) -> list[Connection]:
        """Return the connections that were lost and closed since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def _drop_lost(self) -> None:
        for connection in [connection for connection in self.all if connection.loss]:
            self.all.remove(connection)
            self._selector.unregister(connection.socket)
            connection.close()
            self._lost.append(connection)

    # Results of steps -----------------------------------------------------------------------------------------------

    @property
    def has_newcomers(self) -> bool:
        """Return whether a connection waits for its first load report."""
        return self._has_newcomers

    @property
    def want_snapshot(self) -> bool:
        """Return whether any connection that watches has taken everything sent so far."""
        return any(connection.is_watching and connection.is_drained for connection in self.all)

    def route(self, events: Iterable[Event]) -> None:
        """Give each event to the owner of its request."""
        owners = self._owners
        for event in events:
            owners[event.request_id].append(event)

    def send_step(self, load: EngineLoad, heartbeat: int, snapshot: Snapshot | None) -> None:
        """Send each connection the events of its requests, and the load; the snapshot to those that watch."""
        clock = engine_time()
        for connection in self.all:
            view = snapshot if connection.is_watching and connection.is_drained else None
            connection.send(StepResult(tuple(connection.events), load, clock, heartbeat, view))
            connection.events.clear()
        self._has_newcomers = False

    # Owners of requests ---------------------------------------------------------------------------------------------

    def owner(self, request_id: str) -> list[Event] | None:
        """Return the events of a request's owner; None for a request that is not in flight."""
        return self._owners.get(request_id)

    def set_owner(self, request_id: str, events: list[Event]) -> None:
        """Append the events of a request to `events` from now on."""
        self._owners[request_id] = events

    def forget_ended(self, in_flight: Collection[str]) -> None:
        """Forget the owners of requests that have ended. All their events were routed."""
        if len(self._owners) > len(in_flight):
            self._owners = {
                request_id: events for request_id, events in self._owners.items() if request_id in in_flight
            }
