"""Use of limits by tenant, as the API processes of an engine post it for each other. The engine only passes it on.

Each API process counts the requests of its tenants. One that shares its engines with others posts the use of tenants
with limits, and the engine sends each of them the posts of the others with the results of steps
(docs/decisions/0064). Nothing is sent while an engine has one connection.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

MAX_REPORTED_TENANTS = 64  # in one message; the others follow in the next ones
MAX_PROCESS_TENANTS = 8192  # of one API process; beyond it the use that was posted first is forgotten
MAX_UNSENT_TENANTS = 65_536  # for one that does not read; beyond it the first ones are sent with their next change
IDLE_SECONDS = 120.0  # after which the use of an idle tenant is forgotten; its limits are replenished by then


class TenantUse(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Use of one tenant in one API process.

    Sums only grow, and begin at zero after the post numbered `begun`, so that a post may be received repeatedly, late
    or not at all.
    """

    tenant: str
    begun: int
    number: int  # of the post; each is greater than the one before
    requests: int = 0  # sums: requests that were admitted, and their tokens
    tokens: int = 0
    started: int = 0  # sums: requests that have left the queue, and their prompt tokens
    started_tokens: int = 0
    choices: int = 0  # now: waiting and running ones
    waiting: int = 0  # now: requests in the queue, and their prompt tokens
    waiting_tokens: int = 0
    requests_level: float = 0.0  # use in all processes that is not replenished yet, as far as this one knows
    tokens_level: float = 0.0
    requests_per_minute: float = 0.0  # limits, at which the levels are replenished; may be infinite
    tokens_per_minute: float = 0.0
    seconds: float = 0.0  # since the sums began

    @property
    def is_idle(self) -> bool:
        """Return whether the tenant has no request in the process."""
        return not self.choices and not self.waiting


class RelayedUse(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Use that another API process has posted. age: seconds since then."""

    process: str
    use: TenantUse
    age: float


class UseReport(msgspec.Struct, frozen=True, array_like=True):
    """Posts of other API processes since the last report, and processes that have lost their connection."""

    uses: tuple[RelayedUse, ...]
    gone: tuple[str, ...] = ()


@dataclass(slots=True)
class _Unsent:
    """Changes that one API process has not been sent."""

    uses: OrderedDict[tuple[str, str], None]  # by process and tenant
    gone: list[str]


class UseBoard:
    """Newest posts of each connected API process, and those that the others have not been sent."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._uses: dict[str, OrderedDict[str, tuple[float, TenantUse]]] = {}  # with their times; oldest first
        self._unsent: dict[str, _Unsent] = {}

    def join(self, process: str) -> None:
        """Add an API process, which is sent everything that the others have posted."""
        uses = ((other, tenant) for other, posted in self._uses.items() if other != process for tenant in posted)
        self._unsent[process] = _Unsent(OrderedDict.fromkeys(uses), [])
        self._uses.setdefault(process, OrderedDict())

    def leave(self, process: str) -> None:
        """Forget an API process that has lost its connection, and tell the others."""
        tenants = self._uses.pop(process, OrderedDict())
        self._unsent.pop(process, None)
        for unsent in self._unsent.values():
            for tenant in tenants:
                unsent.uses.pop((process, tenant), None)
            unsent.gone.append(process)

    def post(self, process: str, uses: Sequence[TenantUse]) -> None:
        """Keep the use of tenants in an API process for the others."""
        if (posted := self._uses.get(process)) is None:
            return
        now = self._clock()
        for use in uses:
            posted[use.tenant] = now, use
            posted.move_to_end(use.tenant)
            for other, unsent in self._unsent.items():
                if other != process:
                    unsent.uses[process, use.tenant] = None
                    if len(unsent.uses) > MAX_UNSENT_TENANTS:
                        unsent.uses.popitem(last=False)
        self._forget_idle(process, now)

    def has_unsent(self, process: str) -> bool:
        """Return whether there is a report for an API process."""
        unsent = self._unsent.get(process)
        return unsent is not None and bool(unsent.uses or unsent.gone)

    def take(self, process: str) -> UseReport | None:
        """Return the next report for an API process; None if it was sent everything."""
        unsent = self._unsent.get(process)
        if unsent is None or not (unsent.uses or unsent.gone):
            return None
        now, uses = self._clock(), list[RelayedUse]()
        while unsent.uses and len(uses) < MAX_REPORTED_TENANTS:
            (other, tenant), _ = unsent.uses.popitem(last=False)
            at, use = self._uses[other][tenant]
            uses.append(RelayedUse(other, use, now - at))
        gone, unsent.gone = unsent.gone, []
        return UseReport(tuple(uses), tuple(gone))

    def _forget_idle(self, process: str, now: float) -> None:
        """Forget idle tenants of a process, examining at most two more than it has posted now; busy ones move to the
        end.
        """
        posted = self._uses[process]
        for _ in range(MAX_REPORTED_TENANTS + 2):
            tenant, (at, use) = next(iter(posted.items()))
            if now - at < IDLE_SECONDS and len(posted) <= MAX_PROCESS_TENANTS:
                return
            if use.is_idle or len(posted) > MAX_PROCESS_TENANTS:
                del posted[tenant]
                for unsent in self._unsent.values():
                    unsent.uses.pop((process, tenant), None)
            else:
                posted.move_to_end(tenant)
            if not posted:
                return
