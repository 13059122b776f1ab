"""Requests in flight: every request that has not ended, and the member that gets it. Independent of processes.

Each engine is a member, named by a number. A request waits, or exactly one member has it. `router` chooses the member,
and `waiting_requests` has the order of those that wait.

A request that was being computed when an engine died is suspected from the second time on. A suspect is tried alone: it
has a member for itself, and the requests of other members go on. If the engine dies again with only the suspect at
work, that request alone ends with an error. A member that tries suspects takes no other request until none is left. A
suspect that has made progress stays on its member. The next one is tried after its end, or at once on an idle member;
the only member tries the next one beside it, as there is no other place. If all members are busy for long, one of them
is reserved: it takes no other request, so that it becomes idle.
"""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

from app.engine_client.balancing import requests_to_move
from app.engine_client.channel_clock import ReceivedEvent
from app.engine_client.in_flight_request import InFlightRequest, Sink
from app.engine_client.member_counts import MemberCounts, ReadyMember
from app.engine_client.prefix_index import PrefixIndex
from app.engine_client.router import NOTHING, GetLoad, MemberLoad, choose_member, first_load
from app.engine_client.waiting_requests import WaitingRequests
from engine.request_logging import log_request
from engine.types import Request, TokenEvent

log = logging.getLogger("carousel.in_flight")

CULPRIT_MESSAGE = (
    "The engine died {} times while computing this request, the last time with no other; see the server log."
)


class InFlight:
    """Requests in flight, in order of arrival, and the members that have them."""

    def __init__(
        self, draw: random.Random | None = None, clock: Callable[[], float] = time.monotonic, *, has_several: bool
    ) -> None:
        """draw: chooses among members; None: one of its own. clock: of events that no engine sends. has_several: there
        may be several members at some time.
        """
        self._has_several = has_several
        self._draw = draw or random.Random()
        self._clock = clock
        self._serials = count()
        self._requests: dict[str, InFlightRequest] = {}
        self._counts = MemberCounts()
        self.prefixes = PrefixIndex()
        self._waiting = WaitingRequests(binds_late=has_several)  # all that wait, except for suspects
        self._suspects: list[InFlightRequest] = []  # in order of their trials
        # Suspect that a member tries. None: its trial has ended, and the member is kept free for the next suspect.
        self._trials: dict[int, InFlightRequest | None] = {}
        self._answered: set[int] = set()  # members whose current engine has completed a request

    def __len__(self) -> int:
        return len(self._requests)

    def has_requests(self, member: int) -> bool:
        """Return whether a member has any request."""
        return self.num_choices(member) > 0

    def num_choices(self, member: int) -> int:
        """Return the number of choices that a member has."""
        return self._counts.total(member)

    @property
    def waiting(self) -> WaitingRequests:
        """Return the requests that no member has, except for suspects."""
        return self._waiting

    def slot_waits(self) -> Iterator[tuple[Request, float]]:
        """Yield the requests that wait for a slot, each with the moment since which it waits."""
        for request_state in self._requests.values():
            if (since := request_state.waits_for_slot_since) is not None:
                yield request_state.request, since

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
        """Add a new request, which waits."""
        request_state = self._requests[request.id] = InFlightRequest(request, sink, next(self._serials), self._clock)
        self._waiting.add(request_state)
        return request_state

    def adopt(self, request: Request, sink: Sink, member: int) -> None:
        """Add a request that a member's engine has already."""
        self._place(self.add(request, sink), member)

    def get(self, request_id: str) -> InFlightRequest | None:
        """Return a request; None if it has ended."""
        return self._requests.get(request_id)

    def handle(self, event: ReceivedEvent) -> bool:
        """Pass on an event from the engine that has the request. Returns whether a member may be sent more requests: a
        trial has ended, or the last request before a trial, or this request has come back from its engine.
        """
        request_state = self._requests.get(event.request_id)
        if request_state is None or event.choice not in request_state.output:
            return False
        member = request_state.member
        if member is not None and request_state.unreported:
            self._counts.report(member, request_state.request.service_class, request_state.unreported)
            request_state.unreported = 0
        choices = request_state.num_choices
        is_delivered = request_state.update(event)
        if member is not None and request_state.num_choices < choices:
            self._counts.end(member, request_state.request.service_class)
            self._waiting.release(request_state, 1)
        if not request_state.output:
            del self._requests[event.request_id]
            if isinstance(event, TokenEvent) and member is not None:
                self._answered.add(member)
        if is_delivered:
            request_state.deliver(event)
        if request_state.is_returned:
            request_state.leave_busy_engine()
            self._waiting.add(request_state)
            return True
        if not request_state.deaths and not self._suspects:
            return False
        return self._end_trial(request_state)

    def requests_to_recall(self, ready: Sequence[ReadyMember]) -> list[tuple[int, str]]:
        """Return members and IDs of requests that wait there while other members have free slots.

        Each is asked back from its engine by an abort, and waits again when `handle` gets its end.
        """
        if self._suspects or self._waiting.late or len(ready) < 2:
            return []
        loads = [self._counts.load(member) for member in ready]
        moved = requests_to_move(self._requests.values(), loads, self._clock())
        for request_state in moved:
            request_state.recall()
        return [(each.member, each.request.id) for each in moved if each.member is not None]

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

    def requests_to_send(self, ready: Sequence[ReadyMember]) -> Mapping[int, list[Request]]:
        """Return the requests that are sent to members' engines now, in order. ready: members with an engine."""
        sent: defaultdict[int, list[Request]] = defaultdict(list)
        by_index = {member.index: member for member in ready}
        if self._suspects or self._trials:
            for index in by_index:
                if (suspect := self._suspect_for(index)) is not None:
                    sent[index].append(self._place(suspect, index))
            by_index = {index: member for index, member in by_index.items() if self.takes_requests(index)}
            for index in by_index:
                self._trials.pop(index, None)
        takers = list(by_index)

        def get_load(index: int) -> MemberLoad:
            return self._counts.load(by_index[index])

        while takers and (request_state := self._next_waiting(takers, get_load)) is not None:
            request = request_state.request
            cached = self.prefixes.cached_tokens(request) if len(takers) > 1 else NOTHING
            index = choose_member(takers, get_load, request.service_class, self._draw, cached)
            sent[index].append(self._place(request_state, index))
        if takers and self._waiting.late and (sent or self._waiting.has_unranked):
            self._waiting.report_positions(self._counts.waiting_in_members)
        return sent

    def reserve_member(self, ready: Sequence[ReadyMember]) -> None:
        """Let the member with the fewest choices take no other request until a suspect has been tried on it."""
        others = [member.index for member in ready if self._trials.get(member.index) is None]
        if self.has_waiting_suspect and others and not any(member in self._trials for member in others):
            self._trials[min(others, key=self._counts.total)] = None

    @property
    def has_waiting_suspect(self) -> bool:
        """Return whether a suspect waits for its trial."""
        return self._next_suspect is not None

    def _suspect_for(self, member: int) -> InFlightRequest | None:
        """Return the suspect that a member tries from now on; None if it tries one already, or none."""
        while self._trials.get(member) is None and (suspect := self._next_suspect) is not None:
            if not self._may_try(member):
                return None
            if self._is_live(suspect):
                self._trials[member] = suspect
                return suspect
        return None

    def _next_waiting(self, takers: Sequence[int], get_load: GetLoad) -> InFlightRequest | None:
        """Return the next waiting request that one of these members takes; None without one."""
        while (request_state := self._waiting.first_urgent()) is not None:
            if self._is_live(request_state):
                return request_state
        if not self._waiting.late or first_load(takers, get_load, self._draw, lambda load: load.takes_batch) is None:
            return None
        while (request_state := next(self._waiting.in_turn(), None)) is not None:
            if self._is_live(request_state):
                return request_state
        return None

    def _is_live(self, request_state: InFlightRequest) -> bool:
        """End the aborted choices of a waiting request, and forget it if it has no others. Returns whether it has."""
        request_state.end_aborted()
        if not request_state.output:
            self._forget(request_state)
        return bool(request_state.output)

    def _place(self, request_state: InFlightRequest, member: int) -> Request:
        """Give a request to a member. Returns it for its engine."""
        if not request_state.is_suspect:
            self._waiting.remove(request_state)
        self._waiting.hold(request_state)
        self._counts.add(member, request_state.request.service_class, len(request_state.output))
        return request_state.resume_request(member)

    def drop_aborted(self, request_id: str) -> None:
        """End the aborted choices of a request that no engine has."""
        request_state = self._requests.get(request_id)
        if request_state is not None and request_state.member is None:
            self._is_live(request_state)

    def lose_engine(self, member: int = 0, *, has_died: bool = True) -> bool:
        """Record the loss of a member's engine, which has died or is drained. Its culprit, if known, ends with an
        error; the member's other requests wait for another engine. Returns whether there is a culprit.
        """
        lost = self._requests_of(member)
        at_work = [request_state for request_state in lost if request_state.may_be_computing]
        for request_state in lost:
            self._waiting.release(request_state, request_state.num_choices)
        self._counts.clear(member)
        self.prefixes.forget(member)
        suspect = self._trials.pop(member, None)
        culprit = suspect if has_died and at_work == [suspect] else None
        if culprit is not None:
            message = CULPRIT_MESSAGE.format(culprit.deaths + 1)
            log_request(log, logging.ERROR, culprit.request, "%s", message)
            culprit.fail(message, "engine_died")
            del self._requests[culprit.request.id]
            lost.remove(culprit)
        for request_state in lost:
            request_state.lose_engine(has_died=has_died, is_one_of_several=self._has_several)
            if not request_state.is_suspect:
                self._waiting.add(request_state)
        self._answered.discard(member)
        suspects = (request_state for request_state in self._requests.values() if request_state.is_suspect)
        self._suspects = sorted(suspects, key=lambda request_state: request_state.request.service_class)
        return culprit is not None

    @property
    def has_started(self) -> bool:
        """Return whether any request has output, which only an engine of the same model continues."""
        return any(any(request_state.output.values()) for request_state in self._requests.values())

    def fail_started(self, message: str, code: str) -> None:
        """End the waiting requests that have output, because no engine continues it."""
        for request_state in list(self._requests.values()):
            if request_state.member is None and any(request_state.output.values()):
                request_state.fail(message, code)
                self._forget(request_state)

    def fail(self, message: str, code: str) -> None:
        """End all requests, because there will be no further engine."""
        requests, self._requests, self._suspects, self._trials = self._requests, {}, [], {}
        self._counts = MemberCounts()
        self._waiting = WaitingRequests(binds_late=self._has_several)
        for request_state in requests.values():
            request_state.fail(message, code)

    @property
    def _next_suspect(self) -> InFlightRequest | None:
        """Return the first suspect that waits for its trial."""
        return next((request_state for request_state in self._suspects if request_state.member is None), None)

    def _may_try(self, member: int) -> bool:
        """Return whether a member can try a suspect; the only one may still have those that were tried before."""
        return not self._has_several or not self.has_requests(member)

    def _requests_of(self, member: int) -> list[InFlightRequest]:
        return [request_state for request_state in self._requests.values() if request_state.member == member]

    def _forget(self, request_state: InFlightRequest) -> None:
        """Forget a waiting request that has ended."""
        del self._requests[request_state.request.id]
        if request_state.is_suspect:
            self._suspects.remove(request_state)
        else:
            self._waiting.remove(request_state)
