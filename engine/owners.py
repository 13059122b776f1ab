"""Owners: the connection or orphan that each request in flight belongs to. Independent of sockets.

A request belongs to the connection that submitted it. If that is lost, the request is an orphan for a grace: its
computation goes on and its events are kept, until the same request is submitted again or adopted. An orphan continues
only for a new owner that has the beginning of its output; otherwise it ends and the request is computed from the
submitted output, which gives the same text. One with log-probabilities, which are not kept, is computed again from its
prompt for an API process that adopts it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import cast

from msgspec.structs import replace

from engine.connection import Connection
from engine.ended_requests import EndedRequests
from engine.engine import Engine
from engine.errors import RequestInFlight
from engine.intake import Intake, refusal
from engine.ipc import Adopted, Change, EngineRequest, NotFound
from engine.orphans import Orphan, can_be_adopted, has_logprobs, with_status
from engine.scheduling.sequence import Sequence as Choice
from engine.sent_events import Receiver, Recorder, SentEvents, outputs
from engine.types import EndEvent, Event, Request, TokenEvent

log = logging.getLogger("carousel.engine")

# Orphans beyond which the oldest ends: more than API processes admit together, so that only one that connects again and
# again reaches it.
MAX_ORPHANS = 16_384
MAX_HELD_BYTES = 64 << 20  # of all events that are computed again and wait for their turn


class Owners:
    """Requests in flight by owner. An event is appended to its owner's list, for one look-up."""

    def __init__(self, engine: Engine, intake: Intake, grace_seconds: float, clock: Callable[[], float]) -> None:
        """grace_seconds: for which a request without a connection goes on."""
        self._engine = engine
        self._intake = intake
        self._grace_seconds = grace_seconds
        self._clock = clock
        # `events` of a connection, `sent` of an orphan, or a recorder before either, by request
        self._owners: dict[str, Receiver] = {}
        self._replays: dict[str, Recorder] = {}  # of requests that are computed again
        self._orphans: dict[str, Orphan] = {}  # including those that have ended
        self._noted: dict[str, tuple[Choice, str]] = {}  # requests with a note in the engine, and their processes
        self._ended = EndedRequests()
        self._aliases: dict[str, str] = {}  # of the requests above, by ID
        self._ids: dict[str, str] = {}  # by alias

    def route(self, events: Sequence[Event]) -> None:
        """Give each event to the owner of its request, and forget requests that have ended, except for those that can
        be adopted.
        """
        owners = self._owners
        for event in events:
            owners[event.request_id].append(event)
        if len(owners) > len(self._intake):
            # These events have ends. The other requests are not read: there may be many.
            for request_id in {event.request_id for event in events}:
                if request_id not in self._intake:
                    owner = owners.pop(request_id)
                    self._replays.pop(request_id, None)
                    if request_id not in self._orphans:
                        self._forget_alias(request_id)
                    if (noted := self._noted.pop(request_id, None)) is not None:
                        self._keep(*noted, owner, events)

    def submit(self, connection: Connection, request: Request) -> None:
        """Submit a request, or continue the orphan that it is."""
        if (orphan := self._orphans.get(request.id)) is not None:
            self.route(self._intake.take_events())
            output = outputs(request)
            if (events := orphan.events_after(output, self._clock())) is not None:
                self._intake.change(request.id, is_paused=request.is_paused, service_class=request.service_class)
                for choice in orphan.choices_without(output):
                    self._intake.abort(request.id, choice)
                self.route(self._intake.take_events())
                self._continue(orphan, connection, _owner_of(request, connection), events)
                return
            self._end_orphan(request.id)
        if request.id in self._owners and not self._has(connection, request.id):
            error = RequestInFlight(f"request {request.id!r} is computed for another connection", param="id")
            connection.events += refusal(request, error)
            return
        self._submit(connection, request)

    def _submit(self, connection: Connection, request: Request) -> None:
        owner = self._owners[request.id] = _owner_of(request, connection)
        if isinstance(owner, Recorder) and owner.is_replaying:
            self._replays[request.id] = owner
        self._intake.submit(request)
        if request.alias:
            self._aliases[request.id] = request.alias
            self._ids[request.alias] = request.id
        self._note(request, connection.process)

    def submit_prepared(self, connections: Sequence[Connection]) -> None:
        """Submit the requests that are prepared."""
        for request in self._intake.submit_prepared():
            for connection in connections:
                if self._has(connection, request.id):
                    self._note(request, connection.process)

    def abort(self, connection: Connection, request_id: str, choice: int | None, *, moves: bool = False) -> None:
        """End a request of a connection, or one of its choices. moves: it goes on in another engine."""
        if self._has(connection, request_id):
            if moves:
                self._noted.pop(request_id, None)
            self._intake.abort(request_id, choice)

    def change(self, connection: Connection, message: Change) -> None:
        """Pause or resume a request of a connection, and move it to a class."""
        if self._has(connection, message.request_id):
            is_paused, service_class = message.is_paused, message.service_class
            self._intake.change(message.request_id, is_paused=is_paused, service_class=service_class)

    def keep(self, request_id: str, choice: int) -> None:
        """Keep the pages of a choice that asks for a tool."""
        self._intake.keep(request_id, choice)

    def adopt(self, connection: Connection, name: str, cache_salt: str) -> None:
        """Give an orphan to a connection, with its output so far, or the output of a request that has ended. One with
        log-probabilities is computed again.
        """
        self.route(self._intake.take_events())
        request_id = self._ids.get(name, name)
        orphan = self._adoptable(request_id, name)
        if orphan is None or orphan.request.cache_salt != cache_salt:
            connection.send(NotFound(name, self._holder_salt(request_id, name, connection.process) == cache_salt))
        elif has_logprobs(orphan.request):
            self._compute_again(orphan, connection, name)
        else:
            request = cast(EngineRequest, orphan.adopted_request())  # moments on this clock
            connection.send(Adopted(name, request))
            owner = self._owners.get(request_id)
            if owner is None:
                connection.events += with_status([orphan.sent.last_end], self._clock())
                self._give_ended(orphan, connection.process)
            else:
                self._continue(orphan, connection, _with_target(owner, connection), [])

    def forget(self, request_id: str) -> None:
        """Let no process adopt a request that has ended."""
        self._ended.forget(request_id)

    def _adoptable(self, request_id: str, name: str) -> Orphan | None:
        """Return an orphan, or an ended request of a lost connection, if an API process can make its stream."""
        if (orphan := self._orphans.get(request_id)) is not None:
            return orphan if self._can_be_adopted(orphan.request) else None
        ended = self._ended.find(name)
        return None if ended is None or ended.is_held else ended

    def _holder_salt(self, request_id: str, name: str, process: str) -> str | None:
        """Return the cache salt of a request that another, connected process has; None if there is none."""
        if request_id in self._intake and request_id not in self._orphans:
            return self._intake.request(request_id).cache_salt
        ended = self._ended.find(name)
        return ended.request.cache_salt if ended is not None and ended.is_held and ended.process != process else None

    def lose(self, connection: Connection) -> None:
        """Make orphans of the requests of a lost connection."""
        lost = [request_id for request_id in self._owners if self._has(connection, request_id)]
        for request_id in lost:
            request, output = self._intake.state(request_id)
            owner = self._owners[request_id]
            if isinstance(owner, Recorder):
                owner.target, sent = None, owner.sent
            else:
                sent = self._owners[request_id] = SentEvents.of(output)
            expires_at = self._clock() + self._grace_seconds
            self._orphans[request_id] = Orphan(request, tuple(output), sent, connection.process, expires_at)
            self._noted.pop(request_id, None)
        self._ended.lose(connection.process)
        for request_id in list(islice(self._orphans, max(0, len(self._orphans) - MAX_ORPHANS))):
            self._end_orphan(request_id)
        if connection.process:
            message = "the connection to API process %s is closed: %s; requests that go on for %g s without it: %d"
            level = logging.WARNING if lost else logging.INFO
            log.log(level, message, connection.process, connection.loss, self._grace_seconds, len(lost))

    def release(self, process: str) -> None:
        """End the orphans of an API process."""
        for request_id in [name for name, orphan in self._orphans.items() if orphan.process == process]:
            self._end_orphan(request_id)

    def expire(self) -> None:
        """End the orphans after their grace, and forget ended requests after it. End the choices that were computed
        again beyond their end.
        """
        now = self._clock()
        self._check_replays()
        self._ended.expire(now)
        for request_id in [name for name, orphan in self._orphans.items() if orphan.expires_at <= now]:
            self._end_orphan(request_id)

    @property
    def has_requests(self) -> bool:
        """Return whether any request belongs to a connection, or can be adopted by one."""
        orphans = self._orphans
        return any(
            request_id not in orphans or self._can_be_adopted(orphans[request_id].request)
            for request_id in self._owners
        )

    def _has(self, connection: Connection, request_id: str) -> bool:
        """Return whether a request belongs to a connection."""
        owner = self._owners.get(request_id)
        return (owner.target if isinstance(owner, Recorder) else owner) is connection.events

    def _can_be_adopted(self, request: Request) -> bool:
        return can_be_adopted(request, is_exact=self._engine.info.is_exact)

    def _compute_again(self, orphan: Orphan, connection: Connection, name: str) -> None:
        """Compute a request from its prompt for a connection that adopts it."""
        sent, request_id = orphan.sent.freeze(), orphan.request.id
        if request_id in self._orphans:
            self._end_orphan(request_id)
        self._ended.forget(request_id)
        request = replace(orphan.request, output_so_far={}, waiting_since=None, sent=sent)
        connection.send(Adopted(name, cast(EngineRequest, request)))
        self._submit(connection, request)

    def _check_replays(self) -> None:
        """End choices that go on beyond their known end, and the largest requests whose events take too much memory."""
        held = sum(recorder.held_bytes for recorder in self._replays.values())
        while held > MAX_HELD_BYTES:
            largest = max(self._replays.values(), key=lambda recorder: recorder.held_bytes)
            held -= largest.held_bytes
            largest.give_up(f"Its choices, computed again in another order, took more than {MAX_HELD_BYTES} bytes.")
        for request_id, recorder in list(self._replays.items()):
            while recorder.cut:
                self._intake.abort(request_id, recorder.cut.pop())
            if not recorder.is_replaying:
                del self._replays[request_id]

    def _continue(self, orphan: Orphan, connection: Connection, owner: Receiver, events: list[Event]) -> None:
        """Give an orphan to a connection, with its current phase and the events that the new owner lacks. owner: of the
        connection.
        """
        request_id = orphan.request.id
        del self._orphans[request_id]
        if request_id not in self._owners:
            self._forget_alias(request_id)
        if request_id in self._owners:
            self._owners[request_id] = owner
            self._note(orphan.request, connection.process)
            self._engine.scheduler.report_status(request_id, self._clock())
            self.route(self._intake.take_events())
        for event in events:
            owner.append(event)

    def _end_orphan(self, request_id: str) -> None:
        self._intake.abort(request_id)
        self.route(self._intake.take_events())
        del self._orphans[request_id]
        self._forget_alias(request_id)

    def _forget_alias(self, request_id: str) -> None:
        alias = self._aliases.pop(request_id, "")
        if self._ids.get(alias) == request_id:
            del self._ids[alias]

    def _note(self, request: Request, process: str) -> None:
        """Remember a request of an API process that can be adopted after its end."""
        if self._can_be_adopted(request) and (choice := self._intake.sequence(request.id)) is not None:
            self._noted[request.id] = choice, process

    def _keep(self, choice: Choice, process: str, owner: Receiver, events: Sequence[Event]) -> None:
        """Keep the output of a request that has just ended, for a process that adopts it."""
        request = choice.request
        if isinstance(owner, Recorder):
            sent = owner.sent
        else:
            end = next(event for event in reversed(events) if event.request_id == request.id and _is_end(event))
            tokens = choice.tokens[choice.prompt_len :]
            sent = SentEvents.of({0: tokens[:-1] if isinstance(end, TokenEvent) else tokens})
            sent.append(end)
        expires_at = self._clock() + self._grace_seconds
        kept = replace(request, output_so_far={}, sent=None)
        ended = Orphan(kept, tuple(request.choices), sent, process, expires_at)
        ended.is_held = True
        self._ended.add(ended)

    def _give_ended(self, ended: Orphan, process: str) -> None:
        """Keep an ended request for the process that has adopted it, as if that one had computed it."""
        if self._orphans.pop(ended.request.id, None) is not None:
            self._forget_alias(ended.request.id)
        ended.process, ended.is_held = process, True
        ended.expires_at = self._clock() + self._grace_seconds
        self._ended.add(ended)


def _is_end(event: Event) -> bool:
    return isinstance(event, TokenEvent | EndEvent) and event.finish is not None


def _owner_of(request: Request, connection: Connection) -> Receiver:
    """Return the receiver of a request's events: the connection, with a recorder before it if their order matters."""
    has_order = request.note and (request.n > 1 or request.sent is not None)
    return Recorder(request, connection.events) if has_order else connection.events


def _with_target(owner: Receiver, connection: Connection) -> Receiver:
    """Return the receiver of an orphan's events for a connection."""
    if not isinstance(owner, Recorder):
        return connection.events
    owner.target = connection.events
    return owner
