"""Who may wait: bounded queues for each class and each tenant, in requests and in prompt tokens.

What is beyond a bound is refused at once, before it costs anything, and told when to come again: by the rate at which
its queue was seen to drain.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from app.errors import ApiError
from app.tenants import Tenant
from engine.types import ServiceClass

MEMORY = 30.0  # seconds after which what was seen of a rate counts for 1/e
ROOM = 0.75  # of a bound: when a queue has drained to that, those who come again find room
UNKNOWN_SECONDS, MOST_SECONDS = 5, 600  # to come again in: while no rate is known, and at the most


# Tenants without waiting requests that are remembered, for the rate at which their requests left.
MAX_IDLE_TENANTS = 1024


@dataclass(slots=True)
class Queue:
    """What waits in one queue, and how fast it drains."""

    requests: int = 0
    tokens: int = 0
    _drained: list[float] = field(default_factory=lambda: [0.0, 0.0])  # requests and tokens, fading
    _seen_at: float = 0.0
    _since: float | None = None

    def enter(self, tokens: int) -> None:
        """One more waits."""
        self.requests += 1
        self.tokens += tokens

    def leave(self, tokens: int, now: float) -> None:
        """One less."""
        self.requests -= 1
        self.tokens -= tokens
        self._fade(now)
        self._drained[0] += 1
        self._drained[1] += tokens
        if self._since is None:
            self._since = now

    def seconds_until(self, requests: float, tokens: float, now: float) -> float:
        """Until no more than that waits, at the rate it drains; infinity while that is not known."""
        seconds = 0.0
        over = (self.requests - requests, self.tokens - tokens)
        for too_many, rate in zip(over, self.rates(now), strict=True):
            if too_many > 0:
                seconds = max(seconds, too_many / rate if rate > 0 else math.inf)
        return seconds

    def rates(self, now: float) -> tuple[float, float]:
        """Requests and tokens that leave in a second, of late; 0 while nothing has left."""
        self._fade(now)
        window = MEMORY * (1 - math.exp(-(now - self._since) / MEMORY)) if self._since is not None else 0.0
        requests, tokens = self._drained
        return requests / max(window, 1.0), tokens / max(window, 1.0)

    def _fade(self, now: float) -> None:
        factor = math.exp(-max(0.0, now - self._seen_at) / MEMORY)
        self._drained = [factor * amount for amount in self._drained]
        self._seen_at = now


@dataclass(slots=True)
class TenantQueues:
    """The waiting requests of one tenant: all of them, and those of each class."""

    all: Queue = field(default_factory=Queue)
    classes: dict[ServiceClass, Queue] = field(default_factory=lambda: {c: Queue() for c in ServiceClass})


NO_QUEUES = TenantQueues()  # of a tenant without waiting requests; never entered


class Admission:
    """The queues of one server. Counts requests from their arrival until they have a slot, or are gone."""

    def __init__(
        self, max_requests: int, max_tokens: int, clock: Callable[[], float], tenant_share: float = 1.0
    ) -> None:
        """tenant_share: of both limits, the part that the requests of one tenant may take in a class."""
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._clock = clock
        self._classes = {service_class: Queue() for service_class in ServiceClass}
        self._tenant_share = tenant_share
        self._tenants: OrderedDict[str, TenantQueues] = OrderedDict()  # the least recently active first

    def check(
        self, tenant: Tenant, service_class: ServiceClass, tokens: int = 0, coming: int = 0, slots: int = 0
    ) -> None:
        """Raises `ApiError`: 429 when the tenant has as much waiting as it may, 503 when its class has. `coming` are
        on their way to that queue; as many as there are free `slots` wait for the next step alone."""
        queues = self._tenants.get(tenant.id, NO_QUEUES)
        self._check(
            queues.all, tenant.max_queue or math.inf, tenant.max_queue_tokens or math.inf, tokens, -slots,
            429, "of this key", "queue_quota_exceeded",
        )  # fmt: skip
        self._check(
            self._classes[service_class], self._max_requests, self._max_tokens, tokens, coming - slots,
            503, f"of class {service_class.label}", "server_full",
        )  # fmt: skip
        if self._tenant_share < 1:
            self._check(
                queues.classes[service_class],
                math.ceil(self._tenant_share * self._max_requests),
                math.ceil(self._tenant_share * self._max_tokens), tokens, -slots,
                429, f"of class {service_class.label} and one client", "queue_share_exceeded",
            )  # fmt: skip

    def enter(self, tenant_id: str, service_class: ServiceClass, tokens: int) -> None:
        """A request waits."""
        queues = self._tenants.get(tenant_id)
        if queues is None:
            self._forget_idle()
            queues = self._tenants[tenant_id] = TenantQueues()
        self._tenants.move_to_end(tenant_id)
        for queue in (self._classes[service_class], queues.all, queues.classes[service_class]):
            queue.enter(tokens)

    def leave(self, tenant_id: str, service_class: ServiceClass, tokens: int) -> None:
        """It has its slot, or is gone."""
        now = self._clock()
        queues = self._tenants[tenant_id]
        for queue in (self._classes[service_class], queues.all, queues.classes[service_class]):
            queue.leave(tokens, now)

    def waiting(self, service_class: ServiceClass) -> Queue:
        """What waits of a class."""
        return self._classes[service_class]

    def _forget_idle(self) -> None:
        """Make room for a further tenant. At most two are looked at, so that those with waiting requests cost little;
        they go to the end of the line."""
        for _ in range(2):
            if len(self._tenants) < MAX_IDLE_TENANTS:
                return
            tenant_id, queues = self._tenants.popitem(last=False)
            if queues.all.requests:
                self._tenants[tenant_id] = queues

    def _check(
        self,
        queue: Queue,
        most: float,
        most_tokens: float,
        tokens: int,
        more: int,
        status: int,
        whose: str,
        code: str,
    ) -> None:
        requests = max(0, queue.requests + more)
        # An empty queue takes anything that the engine can serve: else a long prompt could never come in.
        too_long = queue.tokens + tokens > most_tokens and queue.requests > 0
        if requests < most and not too_long:
            return
        seconds = queue.seconds_until(ROOM * most, max(0.0, ROOM * most_tokens - tokens), self._clock())
        again = UNKNOWN_SECONDS if seconds == math.inf else min(MOST_SECONDS, max(1, math.ceil(seconds)))
        waiting = f"{queue.tokens:,} prompt tokens" if too_long else f"{requests:,} requests"
        bound = f"{most_tokens:,} may" if too_long else f"{most:,} may"
        raise ApiError(
            status,
            f"{waiting} {whose} wait, and {bound}; come again in {again} s",
            code=code,
            headers={"Retry-After": str(again)},
        )
