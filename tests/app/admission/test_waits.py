"""Requests that would wait for too long are refused, in a simulated server with slots."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from app.admission.queues import MAX_RETRY_SECONDS, Admission
from app.admission.tenants import Tenant, key_digest
from app.errors import ApiError
from engine.types import ServiceClass

INTERACTIVE, STANDARD, BATCH = ServiceClass
SLOTS, SECONDS, MAX_WAIT = 8, 4.0, 20.0  # slots, mean time in a slot, limit of an interactive wait
CAPACITY = SLOTS / SECONDS  # requests per second
CALM, FLOOD = (Tenant(name=name, digest=key_digest(name)) for name in ("calm", "flood"))


@dataclass
class Server:
    """Admission of a server that serves tenants in rotation, and the waits of the requests that it accepted."""

    is_constant: bool = False  # all requests take the same time
    now: float = 0.0
    waits: list[float] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)  # Retry-After of refused requests
    _running: list[float] = field(default_factory=list)  # ends
    _waiting: dict[str, deque[float]] = field(default_factory=dict)
    _chance: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        self.admission = Admission(10_000, 10**9, lambda: self.now, 1.0, {INTERACTIVE: MAX_WAIT})

    def arrive(self, at: float, tenant: Tenant = CALM) -> bool:
        """Return whether a request is accepted."""
        self.run(at)
        try:
            self.admission.check_wait(tenant, INTERACTIVE, SLOTS, SLOTS - len(self._running))
        except ApiError as error:
            self.refused.append(int(error.headers["Retry-After"]))
            return False
        self.admission.add_waiting(tenant.id, INTERACTIVE, 10)
        self._waiting.setdefault(tenant.id, deque()).append(at)
        self._start()
        return True

    def run(self, until: float) -> None:
        while self._running and self._running[0] <= until:
            self.now = heapq.heappop(self._running)
            self._start()
        self.now = until

    def _start(self) -> None:
        while len(self._running) < SLOTS and self._waiting:
            tenant_id = next(iter(self._waiting))
            queue = self._waiting.pop(tenant_id)
            self.waits.append(self.now - queue.popleft())
            if queue:
                self._waiting[tenant_id] = queue  # at the end
            self.admission.remove_waiting(tenant_id, INTERACTIVE, 10)
            seconds = SECONDS if self.is_constant else self._chance.expovariate(1 / SECONDS)
            heapq.heappush(self._running, self.now + seconds)


def arrivals(rate: float, begin: float, end: float, seed: int = 2) -> list[float]:
    """Return the times of a Poisson process."""
    chance, at, times = random.Random(seed), begin, []
    while (at := at + chance.expovariate(rate)) < end:
        times.append(at)
    return times


@pytest.mark.parametrize("is_constant", [False, True])
def test_accepted_requests_start_within_the_limit_under_a_threefold_overload(is_constant: bool):
    """The server stays busy, and the waits come close to the limit: no more than needed is refused."""
    server = Server(is_constant)
    for at in arrivals(3 * CAPACITY, 0, 300):
        server.arrive(at)
    waits = sorted(server.waits)
    assert waits[len(waits) // 2] > MAX_WAIT / 2 and waits[int(0.99 * len(waits))] < 1.25 * MAX_WAIT
    assert len(waits) > 0.95 * 300 * CAPACITY


@pytest.mark.parametrize("is_constant", [False, True])
def test_a_request_starts_within_the_estimate_of_its_place_in_line(is_constant: bool):
    """In 9 of 10 cases, and the estimate is not far beyond; before any start there is none."""
    server = Server(is_constant)
    assert server.admission.expected_start(2) == math.inf
    estimates: list[float] = []
    for at in arrivals(2 * CAPACITY, 0, 300):
        if server.arrive(at):
            place = server.admission.waiting(INTERACTIVE).requests
            estimates.append(server.admission.expected_start(place) if place else 0.0)
    server.run(2000)
    pairs = [(estimate, wait) for estimate, wait in zip(estimates, server.waits, strict=True) if estimate < math.inf]
    assert len(pairs) > 0.9 * len(estimates)
    assert sum(wait > estimate for estimate, wait in pairs) <= 0.1 * len(pairs)
    assert sum(estimate for estimate, _ in pairs) < 2 * sum(wait for _, wait in pairs)


def test_a_server_that_is_not_overloaded_refuses_nothing():
    """Neither at a light load, nor in a burst after it that is served within the limit."""
    server = Server()
    for at in arrivals(0.5 * CAPACITY, 0, 600):
        assert server.arrive(at)
    for number in range(int(0.6 * MAX_WAIT * CAPACITY)):
        assert server.arrive(600 + number / 1000)
    server.run(1200)
    assert server.arrive(1200)


def test_a_long_idle_time_is_not_taken_for_a_low_rate():
    """The rate of the earlier busy time is known when the next one begins."""
    server = Server()
    for at in arrivals(2 * CAPACITY, 0, 120):
        server.arrive(at)
    server.run(4000)
    assert all(server.arrive(4000 + number / 1000) for number in range(int(0.6 * MAX_WAIT * CAPACITY)))


def test_the_flood_of_one_tenant_does_not_refuse_another():
    """Tenants take turns, so the wait of each is estimated from its own place in the rotation."""
    server, accepted = Server(), []
    calm = set(arrivals(0.2 * CAPACITY, 0, 300, seed=3))
    for at in sorted([*arrivals(4 * CAPACITY, 0, 300), *calm]):
        was_accepted = server.arrive(at, CALM if at in calm else FLOOD)
        accepted += [was_accepted] if at in calm else []
    assert all(accepted) and server.refused


def test_clients_that_return_at_their_time_are_accepted():
    """Clients that are refused in a burst are told times at which the server has room for them, one after another."""
    server = Server()
    for at in arrivals(CAPACITY, 0, 120):
        server.arrive(at)
    begin = server.now
    returns = []
    for number in range(4 * int(MAX_WAIT * CAPACITY)):
        if not server.arrive(begin + number / 1000):
            returns.append(server.now + server.refused[-1])
    accepted = [server.arrive(at) for at in sorted(returns)]
    assert len(returns) > MAX_WAIT * CAPACITY and sum(accepted) > 0.8 * len(returns)


def test_the_time_to_return_has_a_maximum():
    """An overload without an end does not send clients away for hours."""
    server = Server()
    for at in arrivals(20 * CAPACITY, 0, 300):
        server.arrive(at)
    assert max(server.refused) == MAX_RETRY_SECONDS


def test_waiting_requests_of_higher_classes_count():
    """They start first. A class without a limit is never refused."""
    server = Server()
    for at in arrivals(CAPACITY, 0, 120):
        server.arrive(at)
    before = server.admission.estimated_wait(CALM.id, STANDARD, SLOTS, 0)
    for _ in range(int(MAX_WAIT * CAPACITY)):
        server.admission.add_waiting(FLOOD.id, INTERACTIVE, 10)
    assert server.admission.estimated_wait(CALM.id, STANDARD, SLOTS, 0) > before + MAX_WAIT / 2
    for _ in range(1000):
        server.admission.add_waiting(CALM.id, BATCH, 10)
    server.admission.check_wait(CALM, BATCH, SLOTS, 0)


def test_the_error_names_the_option_and_both_times():
    """It states the estimated wait, the limit and when to return."""
    server = Server()
    for at in arrivals(3 * CAPACITY, 0, 100):
        server.arrive(at)
    for _ in range(1000):
        server.admission.add_waiting(CALM.id, INTERACTIVE, 10)
    with pytest.raises(
        ApiError, match=r"may wait for \d+ s; the limit is 20 s \(max_queue_wait_interactive\). Retry"
    ) as refused:
        server.admission.check_wait(CALM, INTERACTIVE, SLOTS, 0)
    assert (refused.value.status, refused.value.code) == (503, "queue_wait_exceeded")
