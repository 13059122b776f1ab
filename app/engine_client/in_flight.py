"""Requests in flight: every request that has not ended, and the member that gets it. Independent of processes.

Each engine is a member, named by a number. A request waits, or exactly one member has it. `router` chooses the member,
and `waiting_requests` has the order of those that wait.

A request that was being computed when an engine died is suspected from the second time on. A suspect goes to any member
as a trial: its engine computes it alone, also beside requests of other API processes, until it has made progress
(`engine.scheduling.trials`). The engine names the trial before it computes it. If it dies then, the trial alone ends
with an error, and no other request is suspected.
"""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count

from app.engine_client.balancing import requests_to_move
from app.engine_client.channel_clock import ReceivedEvent
from app.engine_client.in_flight_request import InFlightRequest, Sink
from app.engine_client.member_counts import MemberCounts, ReadyMember
from app.engine_client.prefix_index import PrefixIndex
from app.engine_client.router import NOTHING, GetLoad, MemberLoad, choose_member, first_load
from app.engine_client.waiting_requests import WaitingRequests
from engine.request_logging import log_request
from engine.types import Request, ServiceClass, TokenEvent

log = logging.getLogger("carousel.in_flight")

OnEnd = Callable[[Request, Sequence[int]], None]  # called with a request that an engine has ended, and its last output

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
        self.on_end: OnEnd = lambda request, output: None
        self._waiting = WaitingRequests(binds_late=has_several)
        # ID of the request that each member's engine computes alone, possibly of another API process.
        self._trials: dict[int, str] = {}
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
        """Return the requests that no member has."""
        return self._waiting

    def slot_waits(self) -> Iterator[tuple[Request, float]]:
        """Yield the requests that wait for a slot, each with the moment since which it waits."""
        for request_state in self._requests.values():
            if (since := request_state.waits_for_slot_since) is not None:
                yield request_state.request, since

    def is_at_work(self, member: int = 0) -> bool:
        """Return whether a member's engine may be computing any request."""
        return any(self._may_be_computing(request_state) for request_state in self._requests_of(member))

    def has_progressed(self, member: int = 0) -> bool:
        """Return whether a member's engine has completed a request, or has made progress with one."""
        return member in self._answered or any(
            request_state.has_progressed for request_state in self._requests_of(member)
        )

    def note_trial(self, member: int, request_id: str) -> None:
        """Note the request that a member's engine computes alone from now on; empty: none."""
        if request_id:
            self._trials[member] = request_id
        else:
            self._trials.pop(member, None)

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
        """Pass on an event from the engine that has the request. Returns whether the request has come back from there,
        and waits for another member.
        """
        request_state = self._requests.get(event.request_id)
        if request_state is None or (output := request_state.output.get(event.choice)) is None:
            return False
        member = request_state.member
        if member is not None and request_state.unreported:
            self._report(request_state, member)
        choices = request_state.num_choices
        is_delivered = request_state.update(event)
        if member is not None and request_state.num_choices < choices:
            self._discount(request_state, member, 1)
        if not request_state.output:
            del self._requests[event.request_id]
            if isinstance(event, TokenEvent) and member is not None:
                self._answered.add(member)
        if is_delivered:
            request_state.deliver(event)
        if not request_state.output:
            self.on_end(request_state.request, output)
        if request_state.is_returned:
            request_state.leave_busy_engine()
            self._waiting.add(request_state)
            return True
        return False

    def change(self, request_id: str, *, is_paused: bool, service_class: ServiceClass) -> int | None:
        """Pause or resume a request, and move it to a class. Returns the member whose engine is to do the same; None if
        the request waits for a member, or has ended.
        """
        if (request_state := self._requests.get(request_id)) is None:
            return None
        member = request_state.member
        if member is None:
            self._waiting.remove(request_state)
            request_state.change(is_paused=is_paused, service_class=service_class)
            self._waiting.add(request_state)
            return None
        self._report(request_state, member)
        self._discount(request_state, member, request_state.num_choices)
        request_state.change(is_paused=is_paused, service_class=service_class)
        self._count(request_state, member)
        return member

    def requests_to_recall(self, ready: Sequence[ReadyMember]) -> list[tuple[int, str]]:
        """Return members and IDs of requests that wait there while other members have free slots.

        Each is asked back from its engine by an abort, and waits again when `handle` gets its end.
        """
        if self._waiting.late or len(ready) < 2:
            return []
        loads = [self._counts.load(member) for member in ready]
        moved = requests_to_move(self._requests.values(), loads, self._clock())
        for request_state in moved:
            request_state.recall()
        return [(each.member, each.request.id) for each in moved if each.member is not None]

    def requests_to_send(self, ready: Sequence[ReadyMember]) -> Mapping[int, list[Request]]:
        """Return the requests that are sent to members' engines now, in order. ready: members with an engine."""
        sent: defaultdict[int, list[Request]] = defaultdict(list)
        by_index = {member.index: member for member in ready}
        takers = list(by_index)

        def get_load(index: int) -> MemberLoad:
            return self._counts.load(by_index[index])

        while takers and (request_state := self._next_waiting(takers, get_load)) is not None:
            request = request_state.request
            cached = self.prefixes.cached_tokens(request) if len(takers) > 1 else NOTHING
            get_own = partial(self._counts.of_tenant, by_index, request.tenant, request.service_class)
            index = choose_member(takers, get_load, request.service_class, self._draw, cached, get_own)
            sent[index].append(self._place(request_state, index))
        if takers and self._waiting.late and (sent or self._waiting.has_unranked):
            self._waiting.report_positions(self._counts.waiting_in_members)
        return sent

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
        self._waiting.remove(request_state)
        request = request_state.resume_request(member)
        self._count(request_state, member)
        return request

    def _count(self, request_state: InFlightRequest, member: int) -> None:
        """Count the choices that a member has of a request, which no load report counts yet."""
        request, choices = request_state.request, request_state.num_choices
        if request.is_paused:
            self._counts.add_paused(member, choices)
            return
        self._waiting.hold(request_state)
        self._counts.add(member, request.tenant, request.service_class, choices)
        request_state.unreported = choices

    def _report(self, request_state: InFlightRequest, member: int) -> None:
        """Count the choices of a request as contained in the load reports of its member."""
        self._counts.report(member, request_state.request.service_class, request_state.unreported)
        request_state.unreported = 0

    def _discount(self, request_state: InFlightRequest, member: int, choices: int) -> None:
        """Count reported choices of a request that have ended in a member, or whose state changes there."""
        request = request_state.request
        if request.is_paused:
            self._counts.add_paused(member, -choices)
            return
        self._counts.remove(member, request.tenant, request.service_class, choices)
        self._waiting.release(request_state, choices)

    def drop_aborted(self, request_id: str) -> None:
        """End the aborted choices of a request that no engine has."""
        request_state = self._requests.get(request_id)
        if request_state is not None and request_state.member is None:
            self._is_live(request_state)

    def lose_engine(self, member: int = 0, *, has_died: bool = True) -> bool:
        """Record the loss of a member's engine, which has died or is drained. If it has died in a trial, the request on
        trial ends with an error; the member's other requests wait for another engine. Returns whether there was a
        trial, possibly of another API process.
        """
        lost = self._requests_of(member)
        at_work = {request_state.request.id for request_state in lost if self._may_be_computing(request_state)}
        for request_state in lost:
            self._waiting.release(request_state, request_state.num_choices)
        self._counts.clear(member)
        self.prefixes.forget(member)
        trial = self._trials.pop(member, "")
        culprit = next((each for each in lost if has_died and each.request.id == trial and each.is_suspect), None)
        if culprit is not None:
            message = CULPRIT_MESSAGE.format(culprit.deaths + 1)
            log_request(log, logging.ERROR, culprit.request, "%s", message)
            culprit.fail(message, "engine_died")
            del self._requests[culprit.request.id]
            lost.remove(culprit)
        for request_state in lost:
            was_computing = request_state.request.id in at_work
            request_state.lose_engine(
                has_died=has_died, was_computing=was_computing, is_one_of_several=self._has_several
            )
            self._waiting.add(request_state)
        self._answered.discard(member)
        return has_died and bool(trial)

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
        requests, self._requests, self._trials = self._requests, {}, {}
        self._counts = MemberCounts()
        self._waiting = WaitingRequests(binds_late=self._has_several)
        for request_state in requests.values():
            request_state.fail(message, code)

    def _may_be_computing(self, request_state: InFlightRequest) -> bool:
        """Return whether the member that has a request may be computing it."""
        assert request_state.member is not None
        trial = self._trials.get(request_state.member)
        return request_state.may_be_computing and trial in (None, request_state.request.id)

    def _requests_of(self, member: int) -> list[InFlightRequest]:
        return [request_state for request_state in self._requests.values() if request_state.member == member]

    def _forget(self, request_state: InFlightRequest) -> None:
        """Forget a waiting request that has ended."""
        del self._requests[request_state.request.id]
        self._waiting.remove(request_state)
