"""Rate limits of each tenant: requests and tokens per minute, and concurrent choices.

Token buckets: a limit's worth may come at once, and is replenished over a minute. The tokens of an answer are known
only when it ends, so a bucket may go below zero; its tenant is then refused until it is above zero again. (The library
`limits` is not used: its memory store starts a thread for expired entries, scans all of them, and is unbounded; and its
windows accept no charge after the fact.)

Use in other API processes is charged to the same buckets when it becomes known (`app.admission.shared_uses`).
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from app.admission.tenants import Tenant
from app.errors import ApiError

MAX_IDLE_TENANTS = 8192  # without a running request, whose buckets are remembered
SECONDS_PER_MINUTE = 60.0
RESTORED_SECONDS = 2 * SECONDS_PER_MINUTE  # after which restored usage is replenished
RETRY_BUSY_SECONDS = 1  # for too many choices; it is unknown when one ends


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one tenant; infinity: no limit."""

    requests_per_minute: float = math.inf
    tokens_per_minute: float = math.inf
    max_concurrency: float = math.inf  # waiting and running choices


# For each network of clients without keys beyond loopback, if no option sets a limit. Far beyond use by people.
ANONYMOUS_LIMITS = Limits(requests_per_minute=3000, tokens_per_minute=3_000_000, max_concurrency=512)


UNLIMITED = Limits()


@dataclass(slots=True)
class Usage:
    """Current usage of one tenant. Amounts are replenished at the rate of its current limits."""

    limits: Limits
    at: float  # time of the last `refill`
    requests: float = 0.0
    tokens: float = 0.0
    running: int = 0  # choices of this process
    elsewhere: int = 0  # choices of other API processes
    elsewhere_at: float = -math.inf  # time at which use in other API processes was last charged
    is_limited: bool = False  # has any limit of its own, also of queues

    def refill(self, now: float) -> None:
        """Replenish for the time since the last call."""
        minutes = max(0.0, now - self.at) / SECONDS_PER_MINUTE
        self.at = now
        if minutes > 0:
            self.requests = max(0.0, self.requests - minutes * self.limits.requests_per_minute)
            self.tokens = max(0.0, self.tokens - minutes * self.limits.tokens_per_minute)


class RateLimits:
    """Usage of all tenants. Bounded: idle tenants are evicted, the least recently active first."""

    def __init__(self, defaults: Mapping[str, int | None], clock: Callable[[], float]) -> None:
        """defaults: limits of tenants without their own. None: no limit for keys and for loopback addresses, and that
        in `ANONYMOUS_LIMITS` for other addresses without a key.
        """
        self._defaults = defaults
        self._clock = clock
        self._usages: OrderedDict[str, Usage] = OrderedDict()
        self._restored: dict[str, tuple[float, float, float]] = {}  # time, requests and tokens before a restart
        self.on_change: Callable[[str], None] = lambda _: None  # called with the id of a limited tenant
        self.refused_shared: Counter[str] = Counter()  # refusals for which use in other API processes counted, by code

    def limits_of(self, tenant: Tenant) -> Limits:
        """Return the current limits of a tenant."""
        return Limits(*(self._limit(tenant, name) for name in Limits.__slots__))

    def check(self, tenant: Tenant, choices: int = 1) -> None:
        """Raise `ApiError` (429) with Retry-After when a limit of the tenant is reached."""
        limits = self.limits_of(tenant)
        usage = self._usages.get(tenant.id) or self._new_usage(tenant.id, limits)
        usage.limits = limits
        usage.refill(now := self._clock())
        # An idle tenant may request more choices than its limit; otherwise such a request could never be served.
        running = usage.running + usage.elsewhere
        if running and running + choices > limits.max_concurrency:
            allowed = f"{limits.max_concurrency:,} choices at once"
            raise self._refusal("max_concurrency", allowed, RETRY_BUSY_SECONDS, is_shared=usage.elsewhere > 0)
        for name, used, limit, unit in (
            ("requests_per_minute", usage.requests + 1, limits.requests_per_minute, "requests"),
            ("tokens_per_minute", usage.tokens + 1, limits.tokens_per_minute, "tokens"),
        ):
            if used > limit:
                seconds = math.ceil(SECONDS_PER_MINUTE * (used - limit) / limit)
                is_shared = now - usage.elsewhere_at < SECONDS_PER_MINUTE
                raise self._refusal(name, f"{limit:,} {unit} a minute", max(1, seconds), is_shared=is_shared)

    def enter(self, tenant: Tenant, choices: int, prompt_tokens: int) -> None:
        """Count a request that was admitted."""
        limits = self.limits_of(tenant)
        usage = self._touch(tenant.id, limits)
        usage.is_limited = limits != UNLIMITED or tenant.has_queue_limit
        usage.requests += 1
        usage.tokens += prompt_tokens
        usage.running += choices
        self._changed(tenant.id, usage)

    def leave(self, tenant_id: str, choices: int, generated_tokens: int) -> None:
        """Count the end of a request, and the tokens of its answer."""
        usage = self._usages[tenant_id]
        usage.refill(self._clock())
        usage.running -= choices
        usage.tokens += generated_tokens
        self._changed(tenant_id, usage)

    def usage(self, tenant_id: str) -> Usage | None:
        """Return the current usage of a tenant; None if it is forgotten."""
        if (usage := self._usages.get(tenant_id)) is not None:
            usage.refill(self._clock())
        return usage

    def in_use(self) -> list[str]:
        """Return the ids of tenants with limits that have choices here, or usage that is not replenished."""
        return [
            tenant_id
            for tenant_id in self._usages
            if (usage := self.usage(tenant_id)) is not None
            and usage.is_limited
            and (usage.running or usage.requests or usage.tokens)
        ]

    def charge_elsewhere(
        self,
        tenant_id: str,
        limits: Limits,
        *,
        requests: float = 0.0,
        tokens: float = 0.0,
        choices: int = 0,
        least: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Charge use in another API process.

        limits: that it has for the tenant. choices: by which their number there has grown. least: requests and tokens
        that the usage has at least after that.
        """
        usage = self._touch(tenant_id, limits)
        usage.elsewhere += choices
        charged = max(usage.requests + requests, least[0]), max(usage.tokens + tokens, least[1])
        if charged > (usage.requests, usage.tokens):
            usage.elsewhere_at = usage.at
        usage.requests, usage.tokens = charged
        self._changed(tenant_id, usage)

    def used(self, tenant_id: str) -> tuple[float, tuple[float, float]] | None:
        """Return the age in seconds, and the requests and tokens, of a tenant's usage; None if it is forgotten."""
        if (usage := self._usages.get(tenant_id)) is not None:
            usage.refill(self._clock())
            return 0.0, (usage.requests, usage.tokens)
        if (restored := self._restored.get(tenant_id)) is not None:
            at, requests, tokens = restored
            return max(0.0, self._clock() - at), (requests, tokens)
        return None

    def restore(self, found: Iterable[tuple[str, float, tuple[float, ...]]]) -> None:
        """Restore the usage of an earlier process: tenant ids with ages in seconds, and requests and tokens.

        A restored tenant is refused for at most a minute, whatever the values are, since another process, with other
        limits and another clock, has written them.
        """
        now = self._clock()
        for tenant_id, age, (requests, tokens) in found:
            self._restored[tenant_id] = now - age, requests, tokens
            if (usage := self._usages.get(tenant_id)) is not None:  # served while the earlier process ended
                before = self._new_usage(tenant_id, usage.limits)
                del self._restored[tenant_id]
                usage.refill(now)
                usage.requests = max(
                    usage.requests, _bounded(usage.requests + before.requests, usage.limits.requests_per_minute)
                )
                usage.tokens = max(usage.tokens, _bounded(usage.tokens + before.tokens, usage.limits.tokens_per_minute))

    def _touch(self, tenant_id: str, limits: Limits) -> Usage:
        """Return the current usage of a tenant, which is now the most recently active one. limits: if it has none."""
        usage = self._usages.get(tenant_id)
        if usage is None:
            self._forget_idle()
            usage = self._usages[tenant_id] = self._new_usage(tenant_id, limits)
            self._restored.pop(tenant_id, None)
        self._usages.move_to_end(tenant_id)
        usage.refill(self._clock())
        return usage

    def _new_usage(self, tenant_id: str, limits: Limits) -> Usage:
        """Return the usage of a tenant that has none, or only of an earlier process."""
        now = self._clock()
        at, requests, tokens = self._restored.get(tenant_id, (now, 0.0, 0.0))
        usage = Usage(limits, at)
        usage.requests = _bounded(requests, limits.requests_per_minute)
        usage.tokens = _bounded(tokens, limits.tokens_per_minute)
        usage.refill(now)
        return usage

    def _changed(self, tenant_id: str, usage: Usage) -> None:
        if min(usage.limits.requests_per_minute, usage.limits.tokens_per_minute) < math.inf:
            self.on_change(tenant_id)

    def _limit(self, tenant: Tenant, name: str) -> float:
        own: int | None = getattr(tenant, name)
        limit: float | None = self._defaults.get(name) if own is None else own
        if limit is None:
            limit = getattr(ANONYMOUS_LIMITS if tenant.is_remote else UNLIMITED, name)
        return limit or math.inf

    def _forget_idle(self) -> None:
        """Evict idle tenants, examining at most two; active tenants move to the end."""
        for _ in range(2):
            if len(self._usages) < MAX_IDLE_TENANTS:
                return
            tenant_id, usage = self._usages.popitem(last=False)
            if usage.running or usage.elsewhere:
                self._usages[tenant_id] = usage
            else:
                self._changed(tenant_id, usage)

    def _refusal(self, name: str, allowed: str, seconds: int, *, is_shared: bool) -> ApiError:
        code = f"{name}_exceeded"
        if is_shared:
            allowed += ", over all API processes"
            self.refused_shared[code] += 1
        message = f"This client has reached its limit {name} ({allowed}). Retry in {seconds} s."
        return ApiError(429, message, code=code, headers={"Retry-After": str(seconds)})


def _bounded(amount: float, limit: float) -> float:
    """Return restored usage, at most as much as a minute and the bucket replenish."""
    return min(amount, max(0.0, 2 * limit - 1))
