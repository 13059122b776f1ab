"""SharedUses: the use of tenants' limits in this API process for the others, and theirs for this one. Pure.

Processes that share engines post their use to each engine, which passes it on (`engine.tenant_uses`). A post has sums
that only grow and the current numbers of requests, so a repeated or late one changes nothing: only a newer post of a
process is taken, from whichever engine it comes first, and the growth of its sums is charged to the tenant's buckets
here. What is admitted within the delay of a post can exceed a limit, nothing else.

A process that knows no former post of a tenant raises its own buckets at least to the stated levels: so one that has
just started has those of the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from app.admission.queues import Admission
from app.admission.rate_limits import MAX_IDLE_TENANTS, SECONDS_PER_MINUTE, UNLIMITED, Limits, RateLimits, Usage
from engine.tenant_uses import (
    IDLE_SECONDS,
    MAX_PROCESS_TENANTS,
    MAX_REPORTED_TENANTS,
    RelayedUse,
    TenantUse,
    UseReport,
)
from engine.types import Request

# Sums of a tenant without a change for so long begin anew, before others have forgotten them (`IDLE_SECONDS`).
RENEWAL_SECONDS = IDLE_SECONDS / 2
# For which the requests of a process count that only a lost engine has reported: until it has posted to another one,
# and without any engine for longer, as its requests wait for one too.
UNREPORTED_SECONDS, LOST_SECONDS = 1.0, 60.0


@dataclass(slots=True)
class _Sums:
    """Sums of one tenant in this process, since a post with the number `begun`."""

    begun: int
    begun_at: float
    changed_at: float
    requests: int = 0
    tokens: int = 0
    started: int = 0
    started_tokens: int = 0


@dataclass(slots=True)
class _Other:
    """Another API process."""

    engines: set[int] = field(default_factory=set)  # that have passed on its posts, and are connected to it
    uses: OrderedDict[str, tuple[float, TenantUse]] = field(default_factory=OrderedDict)  # with times; oldest first
    lost_at: float = 0.0  # time at which it left the last of `engines`, or that engine was lost


class SharedUses:
    """Posts of this process, by engine, and those of the others. Engines are named by numbers."""

    def __init__(self, limits: RateLimits, queues: Admission, clock: Callable[[], float]) -> None:
        self.on_unsent: Callable[[], None] = lambda: None  # called when there is something to post
        self._limits = limits
        self._queues = queues
        self._clock = clock
        self._number = 0  # of the last post
        self._sums: OrderedDict[str, _Sums] = OrderedDict()  # the least recently changed first
        self._unsent: dict[int, OrderedDict[str, None]] = {}  # tenants to post, by engine
        self._others: dict[str, _Other] = {}
        self._joined_at = 0.0  # time since which it has been connected to any engine

    # Use in this process --------------------------------------------------------------------------------------------

    def enter(self, request: Request) -> None:
        """Count a request that was admitted, after its tenant's limits have."""
        self._count(request.tenant, requests=1, tokens=len(request.prompt))

    def leave_queue(self, request: Request) -> None:
        """Count a request that has stopped waiting."""
        self._count(request.tenant, started=1, started_tokens=len(request.prompt))

    def change(self, request: Request) -> None:
        """Note that a request has begun to wait, or no longer waits, for another reason."""
        self._count(request.tenant)

    def end(self, request: Request, generated_tokens: int) -> None:
        """Count the end of a request."""
        self._count(request.tenant, tokens=generated_tokens)

    def _count(
        self, tenant_id: str, *, requests: int = 0, tokens: int = 0, started: int = 0, started_tokens: int = 0
    ) -> None:
        """Add to the sums of a tenant, which are posted then, if it has limits and any engine has other connections."""
        if not self._unsent or (usage := self._limits.usage(tenant_id)) is None or not usage.is_limited:
            return
        sums = self._current_sums(tenant_id)
        sums.requests += requests
        sums.tokens += tokens
        sums.started += started
        sums.started_tokens += started_tokens
        for unsent in self._unsent.values():
            unsent[tenant_id] = None
        self.on_unsent()

    def _current_sums(self, tenant_id: str) -> _Sums:
        now, sums = self._clock(), self._sums.get(tenant_id)
        if sums is None or now - sums.changed_at >= RENEWAL_SECONDS:
            if len(self._sums) >= MAX_IDLE_TENANTS:
                self._sums.popitem(last=False)
            sums = self._sums[tenant_id] = _Sums(self._number, now, now)
        sums.changed_at = now
        self._sums.move_to_end(tenant_id)
        return sums

    # Posts ----------------------------------------------------------------------------------------------------------

    def join(self, engine: int) -> None:
        """Begin to post to an engine."""
        if not self._unsent:
            self._joined_at = self._clock()
        self._unsent[engine] = OrderedDict.fromkeys(self._limits.in_use())
        if self._unsent[engine]:
            self.on_unsent()

    def leave(self, engine: int) -> None:
        """Post no longer to an engine, which is lost or has no other connection. The caller calls `forget_lost` after
        `UNREPORTED_SECONDS`, and after `LOST_SECONDS`.
        """
        self._unsent.pop(engine, None)
        now = self._clock()
        for other in self._others.values():
            if engine in other.engines:
                other.engines.discard(engine)
                other.lost_at = now

    def take(self, engine: int) -> tuple[TenantUse, ...]:
        """Return what is to be posted to an engine next, at most `MAX_REPORTED_TENANTS`."""
        unsent = self._unsent[engine]
        return tuple(self._use(unsent.popitem(last=False)[0]) for _ in range(min(len(unsent), MAX_REPORTED_TENANTS)))

    @property
    def has_unsent(self) -> bool:
        """Return whether there is something to post."""
        return any(self._unsent.values())

    def _use(self, tenant_id: str) -> TenantUse:
        usage = self._limits.usage(tenant_id) or Usage(UNLIMITED, 0.0)
        sums, queue = self._sums.get(tenant_id) or self._current_sums(tenant_id), self._queues.waiting_of(tenant_id)
        self._number += 1
        return TenantUse(
            tenant_id,
            begun=sums.begun,
            number=self._number,
            requests=sums.requests,
            tokens=sums.tokens,
            started=sums.started,
            started_tokens=sums.started_tokens,
            choices=usage.running,
            waiting=queue.requests,
            waiting_tokens=queue.tokens,
            requests_level=usage.requests,
            tokens_level=usage.tokens,
            requests_per_minute=usage.limits.requests_per_minute,
            tokens_per_minute=usage.limits.tokens_per_minute,
            seconds=self._clock() - sums.begun_at,
        )

    # Use in other processes -----------------------------------------------------------------------------------------

    @property
    def num_processes(self) -> int:
        """Return the number of other processes whose use is known."""
        return sum(1 for other in self._others.values() if other.engines)

    @property
    def num_tenants(self) -> int:
        """Return the number of tenants in all of them, each counted once for each process."""
        return sum(len(other.uses) for other in self._others.values())

    def receive(self, engine: int, report: UseReport) -> None:
        """Count the posts that an engine passes on."""
        for name in report.gone:
            if (other := self._others.get(name)) is not None:
                other.engines.discard(engine)
                other.lost_at = self._clock()
                if not other.engines:
                    self._remove_requests(other)
        if report.gone:
            self.forget_lost()
        for relayed in report.uses:
            other = self._others.setdefault(relayed.process, _Other())
            other.engines.add(engine)
            self._take_in(other, relayed)

    def forget_lost(self) -> None:
        """Forget the requests of processes that no engine has reported for a while, and later their sums."""
        now, limit = self._clock(), UNREPORTED_SECONDS if self._unsent else LOST_SECONDS
        for name, other in list(self._others.items()):
            if not other.engines and now - other.lost_at >= limit:
                self._remove_requests(other)
                if now - other.lost_at >= IDLE_SECONDS:
                    del self._others[name]

    def _take_in(self, other: _Other, relayed: RelayedUse) -> None:
        use, now = relayed.use, self._clock()
        _, known = other.uses.get(use.tenant, (now, None))
        if known is not None and use.number <= known.number:
            return
        before = known or TenantUse(use.tenant, use.begun, 0)
        limits, least = Limits(use.requests_per_minute, use.tokens_per_minute), (0.0, 0.0)
        if known is not None and known.begun == use.begun:
            sums = known
        else:
            # Sums that began before this process was connected may be older than what is replenished.
            is_new = now - relayed.age - use.seconds >= self._joined_at
            sums = TenantUse(use.tenant, use.begun, 0) if is_new else use
            minutes = relayed.age / SECONDS_PER_MINUTE
            least = (
                _replenished(use.requests_level, minutes, limits.requests_per_minute),
                _replenished(use.tokens_level, minutes, limits.tokens_per_minute),
            )
        self._limits.charge_elsewhere(
            use.tenant,
            limits,
            requests=use.requests - sums.requests,
            tokens=use.tokens - sums.tokens,
            choices=use.choices - before.choices,
            least=least,
        )
        self._queues.count_elsewhere(
            use.tenant,
            use.waiting - before.waiting,
            use.waiting_tokens - before.waiting_tokens,
            use.started - sums.started,
            use.started_tokens - sums.started_tokens,
        )
        other.uses[use.tenant] = now, use
        other.uses.move_to_end(use.tenant)
        self._forget_idle(other, now)

    def _forget_idle(self, other: _Other, now: float) -> None:
        """Forget idle tenants of a process, examining at most two; busy ones move to the end."""
        for _ in range(2):
            tenant_id, (at, use) = next(iter(other.uses.items()))
            if now - at < IDLE_SECONDS and len(other.uses) <= MAX_PROCESS_TENANTS:
                return
            if use.is_idle or len(other.uses) > MAX_PROCESS_TENANTS:
                del other.uses[tenant_id]
                if not use.is_idle:
                    self._remove(use)
            else:
                other.uses.move_to_end(tenant_id)
            if not other.uses:
                return

    def _remove_requests(self, other: _Other) -> None:
        """Forget the requests of a process that has ended, or is no longer connected. Its sums are kept for a while,
        because it may connect again, and all that it has charged stays charged.
        """
        for tenant_id, (at, use) in other.uses.items():
            if not use.is_idle:
                self._remove(use)
                # An older number: the same post is taken again if an engine reports it again.
                idle = replace(use, number=use.number - 1, choices=0, waiting=0, waiting_tokens=0)
                other.uses[tenant_id] = at, idle

    def _remove(self, use: TenantUse) -> None:
        limits = Limits(use.requests_per_minute, use.tokens_per_minute)
        self._limits.charge_elsewhere(use.tenant, limits, choices=-use.choices)
        self._queues.count_elsewhere(use.tenant, -use.waiting, -use.waiting_tokens)


def _replenished(level: float, minutes: float, per_minute: float) -> float:
    """Return a level after a time."""
    return max(0.0, level - minutes * per_minute) if minutes else level
