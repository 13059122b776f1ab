"""RequestCounts: requests of one API process, counted for the queues and the limits of their tenants."""

from __future__ import annotations

from app.admission.queues import Admission
from app.admission.rate_limits import RateLimits
from app.admission.shared_uses import SharedUses
from app.admission.tenants import Tenant
from engine.types import Request, ServiceClass


class RequestCounts:
    """Counts of queues and limits, which a request enters and leaves together."""

    def __init__(self, queues: Admission, limits: RateLimits, shared: SharedUses) -> None:
        """shared: the same counts, for other API processes."""
        self.running = 0  # choices of requests that have received a slot and have not ended
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

    def enter(self, tenant: Tenant, request: Request) -> None:
        """Count a request that was admitted, and waits."""
        self._queues.add_waiting(request.tenant, request.service_class, len(request.prompt))
        self._limits.enter(tenant, request.n, len(request.prompt))
        self._shared.enter(request)

    def start(self, request: Request) -> None:
        """Count a request that has received a slot."""
        self.running += request.n
        self._leave_queue(request)

    def end(self, request: Request, generated_tokens: int, *, has_started: bool) -> None:
        """Count the end of a request, and the tokens of its answer."""
        if has_started:
            self.running -= request.n
        else:
            self._leave_queue(request)
        self._limits.leave(request.tenant, request.n, generated_tokens)
        self._shared.end(request, generated_tokens)

    def _leave_queue(self, request: Request) -> None:
        self._queues.remove_waiting(request.tenant, request.service_class, len(request.prompt))
        self._shared.leave_queue(request)
