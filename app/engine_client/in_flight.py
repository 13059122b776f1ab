"""Requests in flight: every request that has not ended, and the choice of requests that an engine is given. Independent
of processes.

Each engine is a member, named by a number. A request waits, or exactly one member has it.

A request that was being computed when an engine died is suspected from the second time on. A suspect is tried alone: it
has a member for itself, and the requests of other members go on. If the engine dies again with only the suspect at
work, that request alone ends with an error. A member that tries suspects takes no other request until none is left. A
suspect that has made progress stays on its member. The next one is tried after its end, or at once on an idle member;
the only member tries the next one beside it, as there is no other place.
"""

from __future__ import annotations

import logging

from app.engine_client.channel_clock import ReceivedEvent
from app.engine_client.in_flight_request import InFlightRequest, Sink
from engine.request_logging import log_request
from engine.types import Request, TokenEvent

log = logging.getLogger("carousel.in_flight")

CULPRIT_MESSAGE = (
    "The engine died {} times while computing this request, the last time with no other; see the server log."
)


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

    def lose_engine(self, member: int = 0) -> bool:
        """Record the loss of a member's engine. Its culprit, if known, ends with an error; the member's other requests
        wait for another engine. Returns whether there is a culprit.
        """
        at_work = [request_state for request_state in self._requests_of(member) if request_state.may_be_computing]
        suspect = self._trials.pop(member, None)
        culprit = suspect if at_work == [suspect] else None
        if culprit is not None:
            message = CULPRIT_MESSAGE.format(culprit.deaths + 1)
            log_request(log, logging.ERROR, culprit.request, "%s", message)
            culprit.fail(message, "engine_died")
        for request_state in self._requests_of(member):
            request_state.lose_engine()
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
