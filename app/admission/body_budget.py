"""BodyBudget: memory for the bodies of requests, from the first byte until they are token ids.

A connection stops reading after `RECEIVED_BYTES` until memory for its whole body is reserved, so a body that is being
read can be completed. Waiting tenants take turns. The number of waiting bodies is bounded, so that the bytes that their
connections have received take no more memory than the reserved bodies.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from app.admission.rotation import Rotation
from app.errors import ApiError

# The body, its text, and the decoded and rendered texts, in which a character may take 4 bytes.
MEMORY_PER_BYTE = 8
FREE_BYTES = 32 << 10  # of a body that never waits: less than the headers that a connection may send
RECEIVED_BYTES = 320 << 10  # that a connection buffers: the high-water mark of uvicorn, and one read of a transport
MAX_WAIT_SECONDS = 30.0
RETRY_SECONDS = 5  # it is unknown when another body is done
# While bodies wait, one that arrives more slowly is refused: otherwise a few slow clients could hold all memory.
MIN_BYTES_PER_SECOND = 64 << 10
GRACE_SECONDS = 5.0  # of a body, before its rate is checked
CHECK_SECONDS = 1.0  # between two checks
TOTAL_LIMIT, TENANT_LIMIT, RATE_LIMIT = "max_body_memory", "max_tenant_body_memory", "body_rate"


class BodyBudget:
    """Memory of all bodies of a server, in bytes."""

    def __init__(self, total: int, per_tenant: int) -> None:
        """total, per_tenant: maximum memory. A body must not need more than `per_tenant`."""
        self.refused = dict.fromkeys((TOTAL_LIMIT, TENANT_LIMIT, RATE_LIMIT), 0)
        self.reserved = 0
        self._total = total
        self._per_tenant = per_tenant
        self._by_tenant: Counter[str] = Counter()
        self._waiting = Rotation()
        self._arriving: set[BodyMemory] = set()
        self._next_check: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Return the number of waiting bodies."""
        return len(self._waiting)

    def memory(self, tenant: str) -> BodyMemory:
        """Return the memory of a body of a tenant, with nothing reserved."""
        return BodyMemory(self, tenant)

    async def acquire(self, tenant: str, amount: int) -> None:
        """Reserve memory, in turn. Raises `ApiError` (429, 503) if too many bodies wait, or for too long."""
        self._check_waiting(tenant)
        turn = self._waiting.join(tenant, amount)
        self._grant()
        self._schedule_check()
        try:
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # granted at the moment of the timeout or cancellation
                self.release(tenant, amount)
            if isinstance(error, TimeoutError):
                is_own = self._by_tenant[tenant] + amount > self._per_tenant
                raise self._refusal(is_own, f"no memory was free for {MAX_WAIT_SECONDS:g} s") from None
            raise

    def acquire_now(self, tenant: str, amount: int) -> None:
        """Reserve more memory for a body that has some, for which it must not wait: two such bodies could wait for each
        other. Raises `ApiError` (429, 503) if there is none.
        """
        is_own = self._by_tenant[tenant] + amount > self._per_tenant
        if is_own or self.reserved + amount > self._total:
            raise self._refusal(is_own, "the stored items of this request do not fit")
        self.reserved += amount
        self._by_tenant[tenant] += amount

    def release(self, tenant: str, amount: int) -> None:
        """Return reserved memory."""
        self.reserved -= amount
        self._by_tenant[tenant] -= amount
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]
        self._grant()

    def begin_arrival(self, body: BodyMemory) -> None:
        """Check the rate of a body from now on, while others wait."""
        self._arriving.add(body)
        self._schedule_check()

    def end_arrival(self, body: BodyMemory) -> None:
        """Stop checking the rate of a body."""
        self._arriving.discard(body)

    def _check_waiting(self, tenant: str) -> None:
        """Raise `ApiError` if another waiting body would let connections buffer more than the limits."""
        for limit, waiting, is_own in (
            (self._per_tenant, self._waiting.waiting(tenant), True),
            (self._total, len(self._waiting), False),
        ):
            most = max(1, limit // RECEIVED_BYTES)
            if waiting >= most:
                raise self._refusal(is_own, f"{waiting:,} bodies wait already, which is the limit")

    def _refusal(self, is_own: bool, reason: str) -> ApiError:
        name = TENANT_LIMIT if is_own else TOTAL_LIMIT
        self.refused[name] += 1
        scope, limit = ("this client", self._per_tenant) if is_own else ("all clients", self._total)
        return ApiError(
            429 if is_own else 503,
            f"Bodies of {scope} take their memory of {limit:,} bytes ({name}): {reason}. Send fewer large requests at "
            f"once, or retry in {RETRY_SECONDS} s.",
            code=f"{name}_exceeded",
            headers={"Retry-After": str(RETRY_SECONDS)},
        )

    def _grant(self) -> None:
        """Reserve memory for waiting bodies. When one waits only because of other tenants, smaller ones do not pass it;
        otherwise they could keep it waiting.
        """
        is_full = False

        def may_go(tenant: str, amount: int) -> bool:
            nonlocal is_full
            if is_full or self._by_tenant[tenant] + amount > self._per_tenant:
                return False
            is_full = self.reserved + amount > self._total
            if not is_full:
                self.reserved += amount
                self._by_tenant[tenant] += amount
            return not is_full

        while self._waiting.grant(may_go):
            pass

    def _schedule_check(self) -> None:
        if self._next_check is None and self._arriving and len(self._waiting):
            self._next_check = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check_rates)

    def _check_rates(self) -> None:
        self._next_check = None
        if len(self._waiting):
            for body in [body for body in self._arriving if body.is_slow()]:
                self.refused[RATE_LIMIT] += 1
                body.give_up()
        self._schedule_check()


class BodyMemory:
    """Memory of one body: a context manager that returns it at its end."""

    def __init__(self, budget: BodyBudget, tenant: str) -> None:
        self._budget = budget
        self._tenant = tenant
        self._reserved = 0
        self._received = 0  # bytes of the body
        self._began = 0.0  # time of the first read
        self._timeout = asyncio.timeout(None)  # of the reading

    def __enter__(self) -> BodyMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.keep(0)

    async def reserve(self, size: int) -> None:
        """Wait until a body of at most `size` bytes may be read. Raises `ApiError` (429, 503)."""
        if size > FREE_BYTES:
            await self._budget.acquire(self._tenant, MEMORY_PER_BYTE * size)
            self._reserved = MEMORY_PER_BYTE * size

    def extend(self, size: int) -> None:
        """Reserve memory for `size` more bytes, from the server's own memory. Raises `ApiError` (429, 503)."""
        if size > FREE_BYTES:
            self._budget.acquire_now(self._tenant, MEMORY_PER_BYTE * size)
            self._reserved += MEMORY_PER_BYTE * size

    def keep(self, size: int) -> None:
        """Return the memory that a body of `size` bytes does not need."""
        if excess := max(0, self._reserved - MEMORY_PER_BYTE * size):
            self._reserved -= excess
            self._budget.release(self._tenant, excess)

    @asynccontextmanager
    async def arrival(self) -> AsyncIterator[None]:
        """Read the body in this block. Raises `ApiError` (408) if it arrives too slowly while others wait."""
        self._began = asyncio.get_running_loop().time()
        self._budget.begin_arrival(self)
        try:
            async with self._timeout:
                yield
        except TimeoutError:
            if not self._timeout.expired():
                raise
            rate = f"{MIN_BYTES_PER_SECOND:,} bytes per second"
            message = f"The body arrived more slowly than {rate} while other requests waited for memory. Retry later."
            raise ApiError(408, message, code="body_too_slow") from None
        finally:
            self._budget.end_arrival(self)

    def count(self, size: int) -> None:
        """Count bytes that have arrived."""
        self._received += size

    def is_slow(self) -> bool:
        """Return whether the body holds memory and arrives too slowly."""
        seconds = asyncio.get_running_loop().time() - self._began
        has_rate = self._reserved > 0 and seconds > GRACE_SECONDS
        return has_rate and self._received < MIN_BYTES_PER_SECOND * seconds

    def give_up(self) -> None:
        """End the arrival."""
        self._budget.end_arrival(self)
        self._timeout.reschedule(asyncio.get_running_loop().time())
