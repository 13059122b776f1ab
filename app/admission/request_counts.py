"""RequestCounts: requests of one API process, counted for the queues and the limits of their tenants."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from app.admission.queues import Admission
from app.admission.rate_limits import RateLimits
from app.admission.shared_uses import SharedUses
from app.admission.tenants import Tenant
from app.errors import ApiError
from engine.types import Request, ServiceClass

RETRY_SECONDS = 60  # for too many paused requests; it is unknown when one is resumed


class PauseLimits(NamedTuple):
    """Limits of paused requests: of one tenant, and those of all and their prompt tokens, like the ones of a queue."""

    of_tenant: int
    requests: int
    tokens: int


class RequestCounts:
    """Counts of queues and limits, which a request enters and leaves together."""

    def __init__(self, queues: Admission, limits: RateLimits, shared: SharedUses) -> None:
        """shared: the same counts, for other API processes."""
        self.running = 0  # choices of requests that have received a slot and have not ended
        self._paused: set[str] = set()  # ids of paused requests
        self._paused_tokens = 0  # of their prompts
        self._paused_of: Counter[str] = Counter()  # paused requests by tenant
        self._queues = queues
        self._limits = limits
        self._shared = shared

    def check(
        self, tenant: Tenant, service_class: ServiceClass, tokens: int, choices: int, requests: int,
        about_to_queue: int, slots: int, taken: int,
    ) -> None:  # fmt: skip
        """Raise `ApiError` (429, 503) if a limit of the tenant or of its class is reached.

        For parameters see `Admission`. slots: of all engines. taken: those that are known to be taken by any process.
        """
        self._limits.check(tenant, choices)
        free = max(0, slots - max(self.running, taken))
        self._queues.check(tenant, service_class, tokens, about_to_queue, free, requests)
        self._queues.check_wait(tenant, service_class, slots, free, requests)

    def check_change(
        self, tenant: Tenant, before: Request, after: Request, limits: PauseLimits, slots: int, taken: int, *,
        has_started: bool,
    ) -> None:  # fmt: skip
        """Raise `ApiError` (429, 503) if too many requests are paused, and as `check` does if a request would return to
        a queue that is full, or move to one. Requests that have started have left the queue.
        """
        if after.is_paused and not before.is_paused:
            self._check_pause(after, limits)
        if not (after.is_paused or has_started):
            free = max(0, slots - max(self.running, taken))
            self._queues.check(tenant, after.service_class, len(after.prompt), 0, free)

    def _check_pause(self, request: Request, limits: PauseLimits) -> None:
        if self._paused_of[request.tenant] >= limits.of_tenant:
            message = f"This client has paused {limits.of_tenant:,} requests (max_paused); resume or end one of them."
            raise ApiError(429, message, param="state", code="too_many_paused")
        tokens = self._paused_tokens + len(request.prompt)
        if len(self._paused) >= limits.requests or (self._paused and tokens > limits.tokens):
            message = (
                f"{len(self._paused):,} requests with {self._paused_tokens:,} prompt tokens are paused; at most "
                f"{limits.requests:,} (max_queue) with {limits.tokens:,} (max_queue_tokens) may be."
            )
            headers = {"Retry-After": str(RETRY_SECONDS)}
            raise ApiError(503, message, param="state", code="too_many_paused", headers=headers)

    def change(self, before: Request, after: Request, *, has_started: bool) -> None:
        """Count a request that is paused or resumed, or moves to another class. A paused one waits for nothing."""
        if before.id in self._paused:
            self._forget_pause(before)
        elif has_started:
            self.running -= before.n
        else:
            self._queues.withdraw(before.tenant, before.service_class, len(before.prompt))
        if after.is_paused:
            self._paused.add(after.id)
            self._paused_tokens += len(after.prompt)
            self._paused_of[after.tenant] += 1
        elif has_started:
            self.running += after.n
        else:
            self._queues.add_waiting(after.tenant, after.service_class, len(after.prompt))
        self._shared.change(after)

    def enter(self, tenant: Tenant, request: Request) -> None:
        """Count a request that was admitted, and waits."""
        self._queues.add_waiting(request.tenant, request.service_class, len(request.prompt))
        self._limits.enter(tenant, request.n, len(request.prompt))
        self._shared.enter(request)

    def start(self, request: Request) -> None:
        """Count a request that has received a slot. One that was paused meanwhile is counted when it is resumed."""
        if request.id in self._paused:
            return
        self.running += request.n
        self._leave_queue(request)

    def end(self, request: Request, generated_tokens: int, *, has_started: bool) -> None:
        """Count the end of a request, and the tokens of its answer."""
        if request.id in self._paused:
            self._forget_pause(request)
        elif has_started:
            self.running -= request.n
        else:
            self._leave_queue(request)
        self._limits.leave(request.tenant, request.n, generated_tokens)
        self._shared.end(request, generated_tokens)

    def _forget_pause(self, request: Request) -> None:
        self._paused.remove(request.id)
        self._paused_tokens -= len(request.prompt)
        self._paused_of[request.tenant] -= 1
        if not self._paused_of[request.tenant]:
            del self._paused_of[request.tenant]

    def _leave_queue(self, request: Request) -> None:
        self._queues.remove_waiting(request.tenant, request.service_class, len(request.prompt))
        self._shared.leave_queue(request)
