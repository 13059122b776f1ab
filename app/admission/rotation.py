"""Rotation: waiting work of several tenants, which take turns."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

MayGo = Callable[[str, int], bool]  # from a tenant and the size of its first work


@dataclass(slots=True, eq=False)
class _Waiter:
    size: int
    turn: asyncio.Future[None]


class Rotation:
    """Queues of tenants, which are served in rotation. The smallest work of a tenant goes first, so that a person does
    not wait for the large inputs of a program that has the same key.
    """

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, list[_Waiter]] = OrderedDict()  # the next one first; no list is empty
        self._count = 0

    def join(self, tenant: str, size: int) -> asyncio.Future[None]:
        """Queue work. Return a future that is set at its turn; cancelling the future leaves the queue."""
        waiter = _Waiter(size, asyncio.get_running_loop().create_future())
        self._count += 1
        insort(self._tenants.setdefault(tenant, []), waiter, key=lambda each: each.size)
        waiter.turn.add_done_callback(partial(self._leave, tenant, waiter))
        return waiter.turn

    def waiting(self, tenant: str) -> int:
        """Return the number of waiting works of a tenant."""
        return len(self._tenants.get(tenant, ()))

    def __len__(self) -> int:
        return self._count

    def grant(self, may_go: MayGo) -> bool:
        """Grant the turn to the first work that may go, tenant by tenant. Return whether there was one."""
        for tenant, waiters in self._tenants.items():
            first = next((waiter for waiter in waiters if not waiter.turn.done()), None)
            if first is not None and may_go(tenant, first.size):
                first.turn.set_result(None)
                self._remove(tenant, first)
                if tenant in self._tenants:
                    self._tenants.move_to_end(tenant)
                return True
        return False

    def _leave(self, tenant: str, waiter: _Waiter, turn: asyncio.Future[None]) -> None:
        if turn.cancelled():
            self._remove(tenant, waiter)

    def _remove(self, tenant: str, waiter: _Waiter) -> None:
        waiters = self._tenants[tenant]
        waiters.remove(waiter)
        self._count -= 1
        if not waiters:
            del self._tenants[tenant]
