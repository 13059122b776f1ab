"""Admission control: bounded queues per class and per tenant, in requests and in prompt tokens.

A request beyond a bound is refused at once, before it costs anything, and so is one that would wait for too long. Its
Retry-After is estimated from the observed rate of its queue.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from app.admission.start_rate import StartRate
from app.admission.tenants import Tenant
from app.errors import ApiError
from engine.types import ServiceClass

RATE_DECAY_SECONDS = 30.0  # time constant of the exponential decay of observed drain rates
DRAIN_TARGET_SHARE = 0.75  # of a bound: Retry-After is the time until a queue has drained to this share
DEVIATIONS = 2.5  # by which the number of starts may fall short of the expected one in 1 of 100 estimates
DEFAULT_RETRY_SECONDS, MAX_RETRY_SECONDS = 5, 600  # Retry-After while no rate is known, and its maximum


# Tenants without waiting requests whose drain rate is remembered.
MAX_IDLE_TENANTS = 1024


@dataclass(slots=True)
class Queue:
    """Waiting requests of one queue, and its drain rate."""

    requests: int = 0
    tokens: int = 0
    requests_elsewhere: int = 0  # those of a tenant in other API processes
    tokens_elsewhere: int = 0
    # requests and tokens that left, decayed exponentially
    _drained: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _seen_at: float = 0.0
    _since: float | None = None

    def enter(self, tokens: int) -> None:
        """Count a request that starts to wait."""
        self.requests += 1
        self.tokens += tokens

    def withdraw(self, tokens: int) -> None:
        """Count a request that stops waiting, although the queue has not drained."""
        self.requests -= 1
        self.tokens -= tokens

    def leave(self, tokens: int, now: float) -> None:
        """Count a request that stops waiting."""
        self.withdraw(tokens)
        self.count_drained(1, tokens, now)

    def count_drained(self, requests: int, tokens: int, now: float) -> None:
        """Count requests that have stopped waiting."""
        self._fade(now)
        self._drained[0] += requests
        self._drained[1] += tokens
        if self._since is None:
            self._since = now

    @property
    def all_requests(self) -> int:
        """Return the waiting requests of all API processes."""
        return self.requests + self.requests_elsewhere

    @property
    def all_tokens(self) -> int:
        """Return their prompt tokens."""
        return self.tokens + self.tokens_elsewhere

    def seconds_until(self, requests: float, tokens: float, now: float) -> float:
        """Return the seconds until at most `requests` and `tokens` wait, at the current drain rate; infinity if
        unknown.
        """
        seconds = 0.0
        over = (self.all_requests - requests, self.all_tokens - tokens)
        for excess, rate in zip(over, self.rates(now), strict=True):
            if excess > 0:
                seconds = max(seconds, excess / rate if rate > 0 else math.inf)
        return seconds

    def rates(self, now: float) -> tuple[float, float]:
        """Return the recent drain rates, in requests and tokens per second; 0 before the first request leaves."""
        self._fade(now)
        window = (
            RATE_DECAY_SECONDS * (1 - math.exp(-(now - self._since) / RATE_DECAY_SECONDS))
            if self._since is not None
            else 0.0
        )
        requests, tokens = self._drained
        return requests / max(window, 1.0), tokens / max(window, 1.0)

    def _fade(self, now: float) -> None:
        factor = math.exp(-max(0.0, now - self._seen_at) / RATE_DECAY_SECONDS)
        self._drained = [factor * amount for amount in self._drained]
        self._seen_at = now


@dataclass(slots=True)
class TenantQueues:
    """Waiting requests of one tenant: in total and per class."""

    all: Queue = field(default_factory=Queue)
    classes: dict[ServiceClass, Queue] = field(default_factory=lambda: {c: Queue() for c in ServiceClass})


EMPTY_QUEUES = TenantQueues()  # for tenants without waiting requests; never modified


class Admission:
    """Queues of one server. A request counts from its arrival until it has a slot or has ended."""

    def __init__(
        self,
        max_requests: int,
        max_tokens: int,
        clock: Callable[[], float],
        tenant_share: float = 1.0,
        max_wait: Mapping[ServiceClass, float] = MappingProxyType({}),
    ) -> None:
        """tenant_share: share of both limits that one tenant may use in a class. max_wait: maximum estimated seconds of
        waiting; classes that it lacks have none.
        """
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._clock = clock
        self._classes = {service_class: Queue() for service_class in ServiceClass}
        self._tenant_share = tenant_share
        self._max_wait = max_wait
        self._rates = {service_class: StartRate() for service_class in ServiceClass}
        self._next_return = dict.fromkeys(ServiceClass, 0.0)  # time at which the next refused client may return
        self._tenants: OrderedDict[str, TenantQueues] = OrderedDict()  # the least recently active first
        self.refused_shared: Counter[str] = Counter()  # refusals for which use in other API processes counted, by code

    def check(
        self,
        tenant: Tenant,
        service_class: ServiceClass,
        tokens: int = 0,
        about_to_queue: int = 0,
        slots: int = 0,
        requests: int = 1,
    ) -> None:
        """Raise `ApiError` if the tenant's queue (429) or the queue of its class (503) is full.

        about_to_queue: requests that are about to join the queue of the class. slots: free slots; as many waiting
        requests do not count, because they only wait for the next step. requests: number that is to be queued.
        """
        slots -= requests - 1
        queues = self._tenants.get(tenant.id, EMPTY_QUEUES)
        self._check(
            queues.all, tenant.max_queue or math.inf, tenant.max_queue_tokens or math.inf, tokens, -slots,
            429, "of this key", "queue_quota_exceeded",
        )  # fmt: skip
        self._check(
            self._classes[service_class], self._max_requests, self._max_tokens, tokens, about_to_queue - slots,
            503, f"of class {service_class.label}", "server_full",
        )  # fmt: skip
        if self._tenant_share < 1:
            self._check(
                queues.classes[service_class],
                math.ceil(self._tenant_share * self._max_requests),
                math.ceil(self._tenant_share * self._max_tokens), tokens, -slots,
                429, f"of one client in class {service_class.label}", "queue_share_exceeded",
            )  # fmt: skip

    def check_wait(
        self, tenant: Tenant, service_class: ServiceClass, slots: int, free_slots: int, requests: int = 1
    ) -> None:
        """Raise `ApiError` (503) if requests of a tenant would wait for longer than allowed.

        Refused clients are told to return one after another, at the rate at which requests start.
        """
        most = self._max_wait.get(service_class, math.inf)
        seconds = self.estimated_wait(tenant.id, service_class, slots, free_slots, requests)
        if seconds <= most:
            return
        now = self._clock()
        rate = self._rates[service_class].per_second(now, slots / 2)
        returns_at = max(now + seconds - DRAIN_TARGET_SHARE * most, self._next_return[service_class])
        self._next_return[service_class] = min(returns_at + requests / rate, now + MAX_RETRY_SECONDS)
        retry_seconds = min(MAX_RETRY_SECONDS, max(1, math.ceil(returns_at - now)))
        raise ApiError(
            503,
            f"A request of class {service_class.label} may wait for {seconds:.0f} s; the limit is {most:g} s "
            f"(max_queue_wait_{service_class.label}). Retry in {retry_seconds} s.",
            code="queue_wait_exceeded",
            headers={"Retry-After": str(retry_seconds)},
        )

    def estimated_wait(
        self, tenant_id: str, service_class: ServiceClass, slots: int, free_slots: int, requests: int = 1
    ) -> float:
        """Return the seconds in which the last of further requests of a tenant almost certainly starts, as tenants take
        turns. 0 if there are free slots for all of them.

        slots: of the engine, of which half are expected to be free soon.
        """
        now, seconds = self._clock(), 0.0
        for higher in ServiceClass:
            if higher < service_class:
                seconds += self._classes[higher].requests / self._rates[higher].per_second(now, slots / 2)
        own = self._tenants.get(tenant_id, EMPTY_QUEUES).classes[service_class].requests + requests
        ahead = sum(min(queues.classes[service_class].requests, own) for queues in self._tenants.values())
        ahead += requests - 1 - free_slots
        # Starts are about a Poisson process: in a time with `ahead` expected ones, some deviations fewer are possible.
        ahead = max(0, ahead)
        return seconds + (ahead + DEVIATIONS * math.sqrt(ahead)) / self._rates[service_class].per_second(now, slots / 2)

    def expected_start(self, position: int) -> float:
        """Return the seconds in which the request at a position in line, of all classes, starts in 9 of 10 cases.
        Infinity while the rate of starts is unknown.
        """
        now = self._clock()
        known = sum(rate for each in self._rates.values() if (rate := each.per_second(now, 0)) < math.inf)
        return (position + DEVIATIONS * math.sqrt(position)) / known if known > 0 else math.inf

    def add_waiting(self, tenant_id: str, service_class: ServiceClass, tokens: int) -> None:
        """Count a request that starts to wait."""
        queues = self._touch(tenant_id)
        if not self._classes[service_class].requests:
            self._rates[service_class].begin_waiting(self._clock())
        for queue in (self._classes[service_class], queues.all, queues.classes[service_class]):
            queue.enter(tokens)

    def remove_waiting(self, tenant_id: str, service_class: ServiceClass, tokens: int) -> None:
        """Count a request that has received a slot or has ended."""
        now = self._clock()
        queues = self._tenants[tenant_id]
        for queue in (self._classes[service_class], queues.all, queues.classes[service_class]):
            queue.leave(tokens, now)
        self._rates[service_class].count_start(now)
        self._end_waiting(service_class)

    def withdraw(self, tenant_id: str, service_class: ServiceClass, tokens: int) -> None:
        """Count a request that is paused or moves to another class, which says nothing about the rate of starts."""
        queues = self._tenants[tenant_id]
        for queue in (self._classes[service_class], queues.all, queues.classes[service_class]):
            queue.withdraw(tokens)
        self._end_waiting(service_class)

    def _end_waiting(self, service_class: ServiceClass) -> None:
        if not self._classes[service_class].requests:
            self._rates[service_class].end_waiting()

    def waiting(self, service_class: ServiceClass) -> Queue:
        """Return the queue of a class."""
        return self._classes[service_class]

    def waiting_of(self, tenant_id: str) -> Queue:
        """Return the queue of a tenant, with requests of all classes."""
        return self._tenants.get(tenant_id, EMPTY_QUEUES).all

    def count_elsewhere(
        self, tenant_id: str, requests: int, tokens: int, started: int = 0, started_tokens: int = 0
    ) -> None:
        """Count waiting requests of a tenant in another API process, by which their number there has grown.

        tokens: of their prompts. started, started_tokens: requests that have stopped waiting there.
        """
        queue = self._touch(tenant_id).all
        queue.requests_elsewhere += requests
        queue.tokens_elsewhere += tokens
        if started:
            queue.count_drained(started, started_tokens, self._clock())

    def _touch(self, tenant_id: str) -> TenantQueues:
        """Return the queues of a tenant, which is now the most recently active one."""
        queues = self._tenants.get(tenant_id)
        if queues is None:
            self._forget_idle()
            queues = self._tenants[tenant_id] = TenantQueues()
        self._tenants.move_to_end(tenant_id)
        return queues

    def _forget_idle(self) -> None:
        """Evict idle tenants to make room for another one. At most two tenants are examined, which bounds the cost;
        tenants with waiting requests move to the end.
        """
        for _ in range(2):
            if len(self._tenants) < MAX_IDLE_TENANTS:
                return
            tenant_id, queues = self._tenants.popitem(last=False)
            if queues.all.all_requests:
                self._tenants[tenant_id] = queues

    def _check(
        self,
        queue: Queue,
        max_requests: float,
        max_tokens: float,
        tokens: int,
        extra: int,
        status: int,
        scope: str,
        code: str,
    ) -> None:
        requests = max(0, queue.all_requests + extra)
        # An empty queue accepts anything that the engine can serve; otherwise a long prompt could never enter.
        too_long = queue.all_tokens + tokens > max_tokens and queue.all_requests > 0
        if requests < max_requests and not too_long:
            return
        seconds = queue.seconds_until(
            DRAIN_TARGET_SHARE * max_requests, max(0.0, DRAIN_TARGET_SHARE * max_tokens - tokens), self._clock()
        )
        retry_seconds = (
            DEFAULT_RETRY_SECONDS if seconds == math.inf else min(MAX_RETRY_SECONDS, max(1, math.ceil(seconds)))
        )
        waiting = f"{queue.all_tokens:,}" if too_long else f"{requests:,}"
        shared = ""
        if queue.requests_elsewhere:
            shared = " in all API processes"
            self.refused_shared[code] += 1
        limit = f"{max_tokens:,} prompt tokens" if too_long else f"{max_requests:,} requests"
        raise ApiError(
            status,
            f"The queue {scope} is full ({waiting} of {limit} waiting{shared}). Retry in {retry_seconds} s.",
            code=code,
            headers={"Retry-After": str(retry_seconds)},
        )
