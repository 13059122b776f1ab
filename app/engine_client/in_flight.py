"""Requests in flight: every request that has not ended, with its output so far, so that another engine can resume it;
and the choice of requests that an engine is given. Independent of processes.

Each engine is a member, named by a number. A request waits, or exactly one member has it.

A request that was being computed when an engine died is suspected from the second time on. A suspect is tried alone: it
has a member for itself, and the requests of other members go on. If the engine dies again with only the suspect at
work, that request alone ends with an error. A member that tries suspects takes no other request until none is left. A
suspect that has made progress stays on its member. The next one is tried after its end, or at once on an idle member;
the only member tries the next one beside it, as there is no other place.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Set

from msgspec.structs import replace

from app.engine_client.channel_clock import ReceivedEvent
from engine.request_logging import log_request
from engine.types import (
    EndEvent,
    Event,
    FinishReason,
    Phase,
    PromptEvent,
    Request,
    StatusEvent,
    TokenEvent,
    WaitReason,
)

log = logging.getLogger("carousel.in_flight")

Sink = Callable[[Event], None]

SUSPECT_DEATHS = 2  # deaths of engines that were computing the request, without progress since
# tokens of each choice after which an earlier crash is not attributed to it: more than are in flight at once
MIN_PROGRESS_TOKENS = 4
CULPRIT_MESSAGE = (
    "The engine died {} times while computing this request, the last time with no other; see the server log."
)


class InFlightRequest:
    """A request, the output of its choices, and its state in the engine that has it."""

    __slots__ = (
        "_aborted",
        "_has_reported",
        "_running",
        "_waiting_since",
        "deaths",
        "member",
        "output",
        "progress",
        "request",
        "sink",
    )

    def __init__(self, request: Request, sink: Sink) -> None:
        self.request = request
        self.sink = sink
        # token ids of choices that have not ended
        self.output = {choice: array("I", request.output_so_far.get(choice, ())) for choice in request.choices}
        self.member: int | None = None  # that has it; None: it waits
        self.progress = 0  # tokens since it was sent
        self.deaths = 0  # of engines that were computing it, since its last progress
        self._aborted: set[int] = set()  # choices
        self._has_reported = False  # an event has arrived since it was sent
        self._running: set[int] = set()  # choices that have a slot, according to their last event
        self._waiting_since: float | None = None  # since when all its choices wait, according to their events

    @property
    def may_be_computing(self) -> bool:
        """Return whether its engine may be computing it; true unless it is known to wait."""
        return self.member is not None and (bool(self._running) or not self._has_reported)

    @property
    def has_progressed(self) -> bool:
        """Return whether it made enough progress since it was sent that its earlier state did not crash the engine."""
        return self.progress >= MIN_PROGRESS_TOKENS * len(self.output)

    @property
    def is_suspect(self) -> bool:
        """Return whether it is tried alone before it is computed beside other requests."""
        return self.deaths >= SUSPECT_DEATHS

    def resume_request(self, member: int) -> Request:
        """Mark the request as sent to a member and return it with its output so far, for that engine to resume."""
        self.member, self._has_reported, self.progress = member, False, 0
        self._running.clear()
        output: dict[int, tuple[int, ...]] = {}
        if len(self.output) < self.request.n or any(self.output.values()):
            output = {choice: tuple(tokens) for choice, tokens in self.output.items()}
        if not output and self._waiting_since is None:
            return self.request
        return replace(self.request, output_so_far=output, waiting_since=self._waiting_since)

    def update(self, event: Event) -> None:
        """Update the state from an event of a choice that has not ended."""
        choice = event.choice
        if isinstance(event, TokenEvent):
            self.output[choice].append(event.token_id)
            self.progress += 1
            if event.finish is not None:
                del self.output[choice]
        elif isinstance(event, EndEvent):
            del self.output[choice]
        elif isinstance(event, PromptEvent):
            self._has_reported = True
        elif event.state == "running":
            self._has_reported = True
            self._running.add(choice)
            self._waiting_since = None
        else:
            self._has_reported = True
            self._running.discard(choice)
            if self._waiting_since is None and not self._running:
                self._waiting_since = event.monotonic_time

    def deliver(self, event: Event) -> None:
        """Pass an event to the sink. An exception in one sink must not end the task that serves all requests."""
        try:
            self.sink(event)
        except Exception:
            log_request(log, logging.ERROR, self.request, "an event could not be handled", has_traceback=True)

    def report_no_engine(self) -> None:
        """Report that the request waits for an engine."""
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        for choice in self.output.keys() - self._aborted:
            self.deliver(
                StatusEvent(self.request.id, choice, Phase.QUEUED, cause=WaitReason.RESTART, monotonic_time=now)
            )

    def abort(self, choice: int | None) -> None:
        """Mark the request or one choice as aborted, whether or not an engine receives the abort."""
        self._aborted |= self.output.keys() if choice is None else {choice}

    def end_aborted(self) -> None:
        """End aborted choices without an engine."""
        self.end(self._aborted, FinishReason.ABORT)

    def end(self, choices: Set[int], finish: FinishReason, message: str = "", code: str = "") -> None:
        """End those of `choices` that have not ended, without an event from the engine."""
        for choice in sorted(self.output.keys() & choices):
            self.deliver(StatusEvent(self.request.id, choice, Phase.ENDED, monotonic_time=time.monotonic()))
            event = EndEvent(self.request.id, choice, finish, message, code)
            self.update(event)
            self.deliver(event)

    def fail(self, message: str, code: str) -> None:
        """End all choices with an error."""
        self.end(self.output.keys(), FinishReason.ERROR, message, code)

    def lose_engine(self, *, has_died: bool) -> None:
        """Record the loss of its engine, which has died or is drained; the request waits for another one."""
        loss, is_suspicious = "died" if has_died else "is drained", has_died and self.may_be_computing
        activity = "while computing it" if self.may_be_computing else "while it waited"
        level = logging.WARNING if is_suspicious else logging.INFO
        log_request(log, level, self.request, "the engine %s %s; it resumes in the next engine", loss, activity)
        self.deaths += is_suspicious
        self.member, self.progress = None, 0
        self.report_no_engine()


class InFlight:
    """Requests in flight, in order of arrival, and the members that have them."""

    def __init__(self, members: int = 1) -> None:
        self._members = members
        self._requests: dict[str, InFlightRequest] = {}
        self._suspects: list[InFlightRequest] = []  # in order of their trials
        # Suspect that a member tries. None: its trial has ended, and the member is kept free for the next suspect.
        self._trials: dict[int, InFlightRequest | None] = {}
        self._answered: set[int] = set()  # members whose current engine has completed a request

    def __len__(self) -> int:
        return len(self._requests)

    def has_requests(self, member: int) -> bool:
        """Return whether a member has any request."""
        return any(request_state.member == member for request_state in self._requests.values())

    def is_at_work(self, member: int = 0) -> bool:
        """Return whether a member's engine may be computing any request."""
        return any(request_state.may_be_computing for request_state in self._requests_of(member))

    def has_progressed(self, member: int = 0) -> bool:
        """Return whether a member's engine has completed a request, or has made progress with one."""
        return member in self._answered or any(
            request_state.has_progressed for request_state in self._requests_of(member)
        )

    @property
    def is_on_trial(self) -> bool:
        """Return whether a suspect is on trial, or waits for its trial."""
        return bool(self._suspects)

    def takes_requests(self, member: int) -> bool:
        """Return whether a new request may be sent to a member, which tries no suspect and is not the next to."""
        return not self.is_on_trial or not (
            self._trials.get(member) is not None
            or (self._next_suspect is not None and (member in self._trials or self._may_try(member)))
        )

    def add(self, request: Request, sink: Sink) -> InFlightRequest:
        """Add a new request."""
        request_state = self._requests[request.id] = InFlightRequest(request, sink)
        return request_state

    def get(self, request_id: str) -> InFlightRequest | None:
        """Return a request; None if it has ended."""
        return self._requests.get(request_id)

    def handle(self, event: ReceivedEvent) -> bool:
        """Pass on an event from the engine that has the request. Returns whether its member may be sent more requests,
        because a trial has ended, or the last request before a trial.
        """
        request_state = self._requests.get(event.request_id)
        if request_state is None or event.choice not in request_state.output:
            return False
        request_state.update(event)
        if not request_state.output:
            del self._requests[event.request_id]
            if isinstance(event, TokenEvent) and request_state.member is not None:
                self._answered.add(request_state.member)
        request_state.deliver(event)
        if not request_state.deaths and not self._suspects:
            return False
        return self._end_trial(request_state)

    def _end_trial(self, request_state: InFlightRequest) -> bool:
        """Clear a request that has made progress or ended. Returns what `handle` does."""
        member = request_state.member
        if member is None:
            return False
        if request_state.deaths and request_state.has_progressed:
            request_state.deaths = 0
            if request_state in self._suspects:
                self._suspects.remove(request_state)
                self._trials[member] = None
                return True
        return not request_state.output and self.is_on_trial and not self.has_requests(member)

    def requests_to_send(self, member: int = 0) -> list[Request]:
        """Return the requests that may be sent to a member's engine now and wait, in order."""
        for request_state in list(self._requests.values()):
            if request_state.member is None:
                request_state.end_aborted()
        self._forget_ended()
        if self._trials.get(member) is not None:
            return []
        if suspect := self._next_suspect:
            if self._may_try(member):
                self._trials[member] = suspect
                return [suspect.resume_request(member)]
            if member in self._trials:
                return []
        self._trials.pop(member, None)
        waiting = (request_state for request_state in self._requests.values() if request_state.member is None)
        return [request_state.resume_request(member) for request_state in waiting if not request_state.is_suspect]

    def drop_aborted(self, request_id: str) -> None:
        """End the aborted choices of a request that no engine has."""
        request_state = self._requests.get(request_id)
        if request_state is not None and request_state.member is None:
            request_state.end_aborted()
            if not request_state.output:
                self._forget_ended()

    def lose_engine(self, member: int = 0, *, has_died: bool = True) -> bool:
        """Record the loss of a member's engine, which has died or is drained. Its culprit, if known, ends with an
        error; the member's other requests wait for another engine. Returns whether there is a culprit.
        """
        at_work = [request_state for request_state in self._requests_of(member) if request_state.may_be_computing]
        suspect = self._trials.pop(member, None)
        culprit = suspect if has_died and at_work == [suspect] else None
        if culprit is not None:
            message = CULPRIT_MESSAGE.format(culprit.deaths + 1)
            log_request(log, logging.ERROR, culprit.request, "%s", message)
            culprit.fail(message, "engine_died")
        for request_state in self._requests_of(member):
            request_state.lose_engine(has_died=has_died)
        self._answered.discard(member)
        self._forget_ended()
        suspects = (request_state for request_state in self._requests.values() if request_state.is_suspect)
        self._suspects = sorted(suspects, key=lambda request_state: request_state.request.service_class)
        return culprit is not None

    def fail(self, message: str, code: str) -> None:
        """End all requests, because there will be no further engine."""
        requests, self._requests, self._suspects, self._trials = self._requests, {}, [], {}
        for request_state in requests.values():
            request_state.fail(message, code)

    @property
    def _next_suspect(self) -> InFlightRequest | None:
        """Return the first suspect that waits for its trial."""
        return next((request_state for request_state in self._suspects if request_state.member is None), None)

    def _may_try(self, member: int) -> bool:
        """Return whether a member can try a suspect; the only one may still have those that were tried before."""
        return self._members == 1 or not self.has_requests(member)

    def _requests_of(self, member: int) -> list[InFlightRequest]:
        return [request_state for request_state in self._requests.values() if request_state.member == member]

    def _forget_ended(self) -> None:
        self._requests = {
            request_id: request_state for request_id, request_state in self._requests.items() if request_state.output
        }
        self._suspects = [request_state for request_state in self._suspects if request_state.output]
