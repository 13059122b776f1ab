"""Connections: sockets of the API processes that an engine serves. Independent of requests."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Collection

from engine.clock import engine_time
from engine.connection import Connection
from engine.ipc import ChannelClosed, FromEngine, StepResult, ToEngine
from engine.listener import Listener
from engine.load import EngineLoad, Snapshot
from engine.prefixes import CachedMarks
from engine.tenant_uses import UseBoard

SELECTOR_TICK_SECONDS = 0.001  # a selector rounds its timeout up to a multiple of this
HANG_UP_POLL_SECONDS = 0.05
MAX_WAKEUP_BYTES = 4096  # read at once


class Connections:
    """Open connections, and the listener that admits further ones. No step waits for any of them."""

    def __init__(
        self, *connections: Connection, listener: Listener | None = None, wakeup: socket.socket | None = None
    ) -> None:
        """listener: None if connections are given, the last of which ends the engine. wakeup: ends waits when it has
        data, such as the numbers of signals.
        """
        self.all: list[Connection] = []
        self.uses = UseBoard(time.monotonic)  # of limits, by API process
        self._lost: list[Connection] = []
        self._has_newcomers = False  # connections that have not received a load report
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._wakeup = wakeup
        if listener is not None:
            listener.open(self._selector)
        if wakeup is not None:
            self._selector.register(wakeup, selectors.EVENT_READ, wakeup)
        for connection in connections:
            self.add(connection)

    def add(self, connection: Connection) -> None:
        """Serve a connection. It replaces an earlier one of the same API process, which may not have noticed its loss
        yet.
        """
        for other in self.all:
            if connection.process and other.process == connection.process:
                other.loss = other.loss or "the API process has connected again"
        self.all.append(connection)
        self.uses.join(connection.process)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._has_newcomers = True

    def close(self) -> None:
        """Close all sockets."""
        self.stop_listening()
        self._selector.close()
        for connection in self.all:
            connection.close()

    def stop_listening(self) -> None:
        """Admit no further connection."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def hang_up(self, seconds: float) -> None:
        """Send all queued data and the end of each connection, and wait for up to `seconds` until the other sides have
        closed theirs. A socket that is closed with unread data would drop what was sent last.
        """
        ends_at = time.monotonic() + seconds
        while (open_ones := [each for each in self.all if not each.loss]) and time.monotonic() < ends_at:
            for connection in open_ones:
                connection.flush()
                if connection.is_drained:
                    connection.finish_sending()
            self.receive(HANG_UP_POLL_SECONDS)

    # Messages -------------------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None) -> list[tuple[Connection, ToEngine]]:
        """Return messages that have arrived or arrive within `timeout` seconds (None: no limit), with their senders.

        May return nothing, also before the timeout. Raises `ChannelClosed` if there is no connection and no listener.
        """
        self._drop_lost()
        if not self.all and self._listener is None:
            raise ChannelClosed
        if self._listener is not None and (expiry := self._listener.seconds_to_expiry) is not None:
            timeout = expiry if timeout is None else min(timeout, expiry)
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
        if self._wakeup in ready:
            assert self._wakeup is not None
            self._wakeup.recv(MAX_WAKEUP_BYTES)
        messages: list[tuple[Connection, ToEngine]] = []
        for connection in self.all:
            connection.flush()
            if connection in ready or connection.has_unread:
                messages += [(connection, message) for message in connection.read()]
        if self._listener is not None:
            for connection in self._listener.admit(ready):
                self.add(connection)
        return messages

    def broadcast(self, message: FromEngine) -> None:
        """Send a message on every connection."""
        for connection in self.all:
            connection.send(message)

    def flush(self, connections: Collection[Connection], seconds: float) -> None:
        """Wait for up to `seconds` until the sockets of these connections have taken everything that was sent."""
        ends_at = time.monotonic() + seconds
        while left := [each for each in connections if not (each.loss or each.is_drained)]:
            if (remaining := ends_at - time.monotonic()) <= 0:
                return
            with selectors.DefaultSelector() as writable:
                for connection in left:
                    writable.register(connection.socket, selectors.EVENT_WRITE)
                writable.select(remaining)
            for connection in left:
                connection.flush()

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
            if not any(other.process == connection.process for other in self.all):
                self.uses.leave(connection.process)

    # Results of steps -----------------------------------------------------------------------------------------------

    @property
    def has_newcomers(self) -> bool:
        """Return whether a connection has not received any results."""
        return self._has_newcomers

    @property
    def has_unsent(self) -> bool:
        """Return whether a connection has events or uses to send, or waits for its first load report or marks."""
        return self._has_newcomers or any(
            connection.events or connection.knows_prefixes is False or self._has_unsent_uses(connection)
            for connection in self.all
        )

    @property
    def want_snapshot(self) -> bool:
        """Return whether any connection that watches has taken everything sent so far."""
        return any(connection.is_watching and connection.is_drained for connection in self.all)

    def send_step(
        self, load: EngineLoad, heartbeat: int, snapshot: Snapshot | None, marks: CachedMarks, trial: str
    ) -> None:
        """Send each connection the events of its requests, the load, the trial, and the uses of limits that it lacks;
        the snapshot and the marks of the prefix cache to those that watch.
        """
        clock = engine_time()
        changes = None
        if any(connection.knows_prefixes is not None for connection in self.all):
            changes = marks.take_changes()
        else:
            marks.forget_changes()
        for connection in self.all:
            view = snapshot if connection.is_watching and connection.is_drained else None
            prefixes = None
            if connection.knows_prefixes is not None:
                prefixes = changes if connection.knows_prefixes else marks.take_all()
                connection.knows_prefixes = True
            events = tuple(connection.events)
            uses = self.uses.take(connection.process) if connection.is_drained else None
            connection.send(StepResult(events, load, clock, heartbeat, view, len(self.all), prefixes, trial, uses))
            connection.events.clear()
        self._has_newcomers = False

    def _has_unsent_uses(self, connection: Connection) -> bool:
        """Return whether uses can be sent. They wait, and are replaced by newer ones, while it does not read."""
        return connection.is_drained and self.uses.has_unsent(connection.process)
