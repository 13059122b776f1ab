"""What is in flight: every request that has not ended, with all that it has said, so that an engine can go on where
another one died; and which of them an engine is given. Knows nothing of processes.

A request that engines were working on when they died is suspected from the second time on. Suspects are tried one after
another, while all others wait: who alone is at work when the engine dies once more ends with an error, and nobody else.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Set

from msgspec.structs import replace

from engine.request_logging import log_request
from engine.types import Cause, EndEvent, Event, FinishReason, Phase, Request, StatusEvent, TokenEvent

log = logging.getLogger("carousel.in_flight")

Sink = Callable[[Event], None]

SUSPECTED = 2  # deaths of engines that were at work on it and came no further
PROGRESS = 4  # tokens of each choice behind which no death is held against a request: more than are under way at once
CULPRIT = "the engine died {} times at work on this request, at last on no other; the server's log says more"


class Ongoing:
    """A request, what its choices have said, and where it stands with the engine that lives."""

    __slots__ = (
        "_aborted",
        "_is_heard",
        "_running",
        "_waits_since",
        "deaths",
        "is_sent",
        "progress",
        "request",
        "said",
        "sink",
    )

    def __init__(self, request: Request, sink: Sink) -> None:
        self.request = request
        self.sink = sink
        self.said = {choice: array("I") for choice in range(request.n)}  # token ids, of choices that have not ended
        self.is_sent = False
        self.progress = 0  # tokens since it was sent
        self.deaths = 0  # of engines at work on it, since it last made progress
        self._aborted: set[int] = set()  # choices
        self._is_heard = False  # anything of it, since it was sent
        self._running: set[int] = set()  # choices that were last heard to have a slot
        self._waits_since: float | None = None  # all of it, as far as was heard

    @property
    def is_at_work(self) -> bool:
        """True unless it is known to wait."""
        return self.is_sent and (bool(self._running) or not self._is_heard)

    @property
    def has_got_on(self) -> bool:
        """Whether it came so far since it was sent that what it was at before was not what the engine died of."""
        return self.progress >= PROGRESS * len(self.said)

    def as_it_stands(self) -> Request:
        """What the engine that lives is to be sent: it goes on where it was."""
        self.is_sent, self._is_heard, self.progress = True, False, 0
        self._running.clear()
        said: dict[int, tuple[int, ...]] = {}
        if len(self.said) < self.request.n or any(self.said.values()):
            said = {choice: tuple(tokens) for choice, tokens in self.said.items()}
        if not said and self._waits_since is None:
            return self.request
        return replace(self.request, said=said, since=self._waits_since)

    def note(self, event: Event) -> None:
        """An event of one of its choices that have not ended."""
        choice = event.choice
        if isinstance(event, TokenEvent):
            self.said[choice].append(event.token_id)
            self.progress += 1
            if event.finish is not None:
                del self.said[choice]
        elif isinstance(event, EndEvent):
            del self.said[choice]
        elif event.state == "running":
            self._is_heard = True
            self._running.add(choice)
            self._waits_since = None
        else:
            self._is_heard = True
            self._running.discard(choice)
            if self._waits_since is None and not self._running:
                self._waits_since = event.at

    def tell(self, event: Event) -> None:
        """Hand on. One request's mistake must not end the task that serves all others."""
        try:
            self.sink(event)
        except Exception:
            log_request(log, logging.ERROR, self.request, "an event could not be handled", has_traceback=True)

    def tell_no_engine(self) -> None:
        """It waits for one to be there."""
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        for choice in self.said.keys() - self._aborted:
            self.tell(StatusEvent(self.request.id, choice, Phase.QUEUED, cause=Cause.RESTART, at=now))

    def abort(self, choice: int | None) -> None:
        """Nobody wants it, or one of its choices, any more, whether or not the engine hears of it."""
        self._aborted |= self.said.keys() if choice is None else {choice}

    def end_aborted(self) -> None:
        """There is no engine that could."""
        self.end(self._aborted, FinishReason.ABORT)

    def end(self, choices: Set[int], finish: FinishReason, message: str = "", code: str = "") -> None:
        """Those of `choices` that have not, end without a word of the engine's."""
        for choice in sorted(self.said.keys() & choices):
            self.tell(StatusEvent(self.request.id, choice, Phase.ENDED, at=time.monotonic()))
            event = EndEvent(self.request.id, choice, finish, message, code)
            self.note(event)
            self.tell(event)

    def fail(self, message: str, code: str) -> None:
        """All of it ends."""
        self.end(self.said.keys(), FinishReason.ERROR, message, code)

    def lose_engine(self) -> None:
        """It waits for the next one."""
        level, doing = (logging.WARNING, "at work on it") if self.is_at_work else (logging.INFO, "while it waited")
        log_request(log, level, self.request, "the engine died %s; it goes on in the next one", doing)
        self.deaths += self.is_at_work
        self.is_sent, self.progress = False, 0
        self.tell_no_engine()


class InFlight:
    """All of them, in the order in which they came."""

    def __init__(self) -> None:
        self._requests: dict[str, Ongoing] = {}
        self._suspects: list[Ongoing] = []  # the first of them is on trial
        self._has_answered = False  # the engine that lives, one of them

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def is_at_work(self) -> bool:
        """Whether the engine is at work on any of them."""
        return any(ongoing.is_at_work for ongoing in self._requests.values())

    @property
    def is_on_trial(self) -> bool:
        """Whether one of them is, and the others wait."""
        return bool(self._suspects)

    def add(self, request: Request, sink: Sink) -> Ongoing:
        """A new one."""
        ongoing = self._requests[request.id] = Ongoing(request, sink)
        return ongoing

    def get(self, request_id: str) -> Ongoing | None:
        """None where it has ended."""
        return self._requests.get(request_id)

    def take(self, event: Event) -> bool:
        """Hand on an event of the engine's. Returns whether a trial is over."""
        ongoing = self._requests.get(event.request_id)
        if ongoing is None or event.choice not in ongoing.said:
            return False
        ongoing.note(event)
        if not ongoing.said:
            del self._requests[event.request_id]
            self._has_answered = self._has_answered or isinstance(event, TokenEvent)
        ongoing.tell(event)
        if not ongoing.deaths or not ongoing.has_got_on:
            return False
        ongoing.deaths = 0
        if ongoing not in self._suspects:
            return False
        self._suspects.remove(ongoing)
        return True

    def take_unsent(self) -> list[Request]:
        """Those that the engine may be given now and has not been, in order."""
        for ongoing in list(self._requests.values()):
            if not ongoing.is_sent:
                ongoing.end_aborted()
        self._forget_ended()
        going = self._suspects[:1] or self._requests.values()
        return [ongoing.as_it_stands() for ongoing in going if not ongoing.is_sent]

    def drop_aborted(self, request_id: str) -> None:
        """What of it no engine has, and nobody wants, ends."""
        ongoing = self._requests.get(request_id)
        if ongoing is not None and not ongoing.is_sent:
            ongoing.end_aborted()
            if not ongoing.said:
                self._forget_ended()

    @property
    def has_got_on(self) -> bool:
        """Whether the engine that lives has answered somebody, or taken anybody on for a while."""
        return self._has_answered or any(ongoing.has_got_on for ongoing in self._requests.values())

    def lose_engine(self) -> bool:
        """It died: all wait for the next one, but for whom it died of. Returns whether there is such a culprit."""
        at_work = [ongoing for ongoing in self._requests.values() if ongoing.is_at_work]
        culprits = at_work if at_work == self._suspects[:1] else []
        for culprit in culprits:
            message = CULPRIT.format(culprit.deaths + 1)
            log_request(log, logging.ERROR, culprit.request, "%s", message)
            culprit.fail(message, "engine_died")
        for ongoing in list(self._requests.values()):
            ongoing.lose_engine()
        self._has_answered = False
        self._forget_ended()
        suspects = (ongoing for ongoing in self._requests.values() if ongoing.deaths >= SUSPECTED)
        self._suspects = sorted(suspects, key=lambda ongoing: ongoing.request.service_class)
        return bool(culprits)

    def fail(self, message: str, code: str) -> None:
        """There will be no engine any more."""
        requests, self._requests, self._suspects = self._requests, {}, []
        for ongoing in requests.values():
            ongoing.fail(message, code)

    def _forget_ended(self) -> None:
        self._requests = {request_id: ongoing for request_id, ongoing in self._requests.items() if ongoing.said}
        self._suspects = [ongoing for ongoing in self._suspects if ongoing.said]
