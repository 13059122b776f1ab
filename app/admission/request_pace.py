"""RequestPace: rate of each tenant's requests that need no engine, such as those for stored conversations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from app.admission.cpu_shares import CpuShares
from app.admission.rotation import Rotation
from app.errors import ApiError

# Requests for stored conversations at 530 a second took 0.8 of a core and delayed everybody's tokens.
REQUEST_SECONDS = 0.0015  # of the event loop and the store's thread, for a small request
MAX_SHARE = 0.15  # of a core, for one tenant
MAX_WAITING = 1000  # requests of a tenant: more than a page or an agent sends at once
MAX_ALL_WAITING = 4096
MAX_PAUSE_SECONDS = 0.1  # before the queue is examined again: all answers may have ended, or all that wait be gone
RETRY_SECONDS = 2


class RequestPace:
    """Queue of requests beyond a tenant's share while answers are generated, in which tenants take turns.

    A tenant's requests wait, as programs that send many at once expect; beyond `MAX_WAITING` they are refused, since a
    client that has closed its connection would leave its request here.
    """

    def __init__(
        self, is_generating: Callable[[], bool], share: float = MAX_SHARE, max_waiting: int = MAX_WAITING
    ) -> None:
        """is_generating: whether there are answers that requests would delay. share: of a core, for one tenant.
        max_waiting: requests of one tenant.
        """
        self.delayed = 0
        self.refused = 0
        self._is_generating = is_generating
        self._max_waiting = max_waiting
        self._shares = CpuShares(share)
        self._waiting = Rotation()
        self._timer: asyncio.TimerHandle | None = None

    async def wait_turn(self, tenant: str) -> None:
        """Wait until a request of the tenant may be served. Raises `ApiError` (429) if too many of them wait."""
        if not self._waiting.waiting(tenant) and not self._take(tenant):
            return
        if self._waiting.waiting(tenant) >= self._max_waiting or len(self._waiting) >= MAX_ALL_WAITING:
            self.refused += 1
            raise ApiError(
                429,
                f"Too many requests of this client wait for their turn. Retry in {RETRY_SECONDS} s.",
                code="request_rate_exceeded",
                headers={"Retry-After": str(RETRY_SECONDS)},
            )
        self.delayed += 1
        turn = self._waiting.join(tenant, 0)
        if self._timer is None:
            self._admit()
        await turn

    def _take(self, tenant: str) -> float:
        """Return the seconds until the tenant's next request may be served; if it may now, count it."""
        if not self._is_generating():
            return 0.0
        now = time.monotonic()
        if not (wait := self._shares.wait(tenant, now)):
            self._shares.spend(tenant, now, REQUEST_SECONDS)
        return wait

    def _admit(self) -> None:
        self._timer, pauses = None, [MAX_PAUSE_SECONDS]

        def may_go(tenant: str, _: int) -> bool:
            if wait := self._take(tenant):
                pauses.append(wait)
            return not wait

        while self._waiting.grant(may_go):
            if self._is_generating() and (total := self._shares.total_wait(time.monotonic())):
                pauses.append(total)
                break
        if len(self._waiting):
            self._timer = asyncio.get_running_loop().call_later(min(pauses), self._admit)
