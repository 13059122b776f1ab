"""Requests that no member has, in the order in which members get them.

With several members, batch requests are bound late: an engine gets them shortly before it needs them, and the others
wait here, so that the engine that is free first computes them. Tenants take turns: the next request is one of the
tenant that has the fewest choices in engines for its weight. Each tenant with waiting requests therefore has some in
the engines' own queues, whose policy divides the service among them.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator
from itertools import count, islice

from app.engine_client.in_flight_request import InFlightRequest
from engine.types import ServiceClass

MIN_CLEANUP_ENTRIES = 64  # of the order, below which those of requests that have left are kept
MAX_REPORTED_POSITIONS = 32  # number of waiting requests that get updates of their position, as in an engine


class _Tenant:
    """Waiting batch requests of a tenant in order, and its choices in engines."""

    __slots__ = ("requests", "taken", "turn", "weight")

    def __init__(self) -> None:
        self.requests: list[InFlightRequest] = []
        self.taken = 0
        self.turn = 0  # serial number of its last turn
        self.weight = 1.0


class WaitingRequests:
    """Queue of requests: those that any member takes at once, and batch requests that are bound late."""

    def __init__(self, *, binds_late: bool) -> None:
        self._binds_late = binds_late
        self._urgent: dict[str, InFlightRequest] = {}
        self._order: list[tuple[int, str]] = []  # heap of (serial, ID), also of requests that have left
        self._tenants: dict[str, _Tenant] = {}
        self._late = 0
        self._turns = count(1)
        self._unranked: dict[str, InFlightRequest] = {}  # late requests whose position was not reported

    @property
    def has_unranked(self) -> bool:
        """Return whether a request that is bound late has no position yet."""
        return bool(self._unranked)

    def is_late(self, request: InFlightRequest) -> bool:
        """Return whether a request waits until a member needs it. A paused one needs no slot: any member takes it."""
        is_batch = request.request.service_class is ServiceClass.BATCH
        return self._binds_late and is_batch and not request.request.is_paused

    @property
    def late(self) -> int:
        """Return the number of requests that are bound late."""
        return self._late

    def count(self, service_class: ServiceClass) -> int:
        """Return the number of requests of a class that wait, and are not paused."""
        waiting = (request.request for request in self._urgent.values() if not request.request.is_paused)
        urgent = sum(request.service_class is service_class for request in waiting)
        return urgent + (self._late if service_class is ServiceClass.BATCH else 0)

    def add(self, request: InFlightRequest) -> None:
        """Queue a request; one that comes back from an engine takes its former place."""
        if not self.is_late(request):
            self._urgent[request.request.id] = request
            heapq.heappush(self._order, (request.serial, request.request.id))
            if len(self._order) > MIN_CLEANUP_ENTRIES + 2 * len(self._urgent):
                self._order = sorted((each.serial, name) for name, each in self._urgent.items())
            return
        tenant = self._tenants.setdefault(request.request.tenant, _Tenant())
        tenant.weight = request.request.weight
        insort(tenant.requests, request, key=_order)
        self._late += 1
        self._unranked[request.request.id] = request

    def remove(self, request: InFlightRequest) -> None:
        """Remove a request, for a member or because it has ended."""
        if not self.is_late(request):
            del self._urgent[request.request.id]
            return
        tenant = self._tenants[request.request.tenant]
        tenant.requests.remove(request)
        self._late -= 1
        self._unranked.pop(request.request.id, None)
        self._forget(request)

    def hold(self, request: InFlightRequest) -> None:
        """Count the choices of a request that a member gets, or has and begins to count here."""
        if self.is_late(request):
            tenant = self._tenants.setdefault(request.request.tenant, _Tenant())
            tenant.weight = request.request.weight
            tenant.taken += request.num_choices
            tenant.turn = next(self._turns)

    def release(self, request: InFlightRequest, choices: int) -> None:
        """Count choices that have left their member."""
        if self.is_late(request):
            self._tenants[request.request.tenant].taken -= choices
            self._forget(request)

    def first_urgent(self) -> InFlightRequest | None:
        """Return the next request of those that any member takes at once; None if none waits."""
        while self._order:
            serial, request_id = self._order[0]
            request = self._urgent.get(request_id)
            if request is not None and request.serial == serial:
                return request
            heapq.heappop(self._order)
        return None

    def in_turn(self) -> Iterator[InFlightRequest]:
        """Yield the requests that are bound late, in the order of their turns if no choice ends meanwhile."""
        turns = count(next(self._turns))
        heap = [(t.taken / t.weight, t.turn, name, 0) for name, t in self._tenants.items() if t.requests]
        heapq.heapify(heap)
        taken = {name: self._tenants[name].taken for _, _, name, _ in heap}
        while heap:
            _, _, name, index = heap[0]
            tenant = self._tenants[name]
            yield tenant.requests[index]
            taken[name] += len(tenant.requests[index].output)
            if index + 1 < len(tenant.requests):
                heapq.heapreplace(heap, (taken[name] / tenant.weight, next(turns), name, index + 1))
            else:
                heapq.heappop(heap)

    def report_positions(self, ahead: int) -> None:
        """Report the changed positions of the first few late requests, and a position to each new one.

        ahead: batch requests that wait in engines.
        """
        first = list(islice(self.in_turn(), MAX_REPORTED_POSITIONS))
        unranked, self._unranked = self._unranked, {}
        for position, request in enumerate(first, ahead + 1):
            unranked.pop(request.request.id, None)
            request.report_position(position)
        for request in unranked.values():
            request.report_position(ahead + self._late)

    def _forget(self, request: InFlightRequest) -> None:
        tenant = self._tenants[request.request.tenant]
        if not tenant.requests and not tenant.taken:
            del self._tenants[request.request.tenant]


def _order(request: InFlightRequest) -> tuple[int, int]:
    return request.request.priority, request.serial
