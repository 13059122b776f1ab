"""KeptSessions: sessions whose connection was lost, until their client comes back or their time is over.

Bounded in time, and in bytes by tenant and in all. Independent of protocols.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from app.errors import ApiError

KEEP_SECONDS = 60.0
MIN_SESSION_BYTES = 128 << 10  # that a session counts as: running answers take memory too
MAX_TENANT_BYTES = 16 << 20
MAX_BYTES = 128 << 20
RESUMED, EXPIRED, EVICTED = "resumed", "expired", "evicted"


class Session(Protocol):
    """Session that can lose its connection."""

    id: str

    @property
    def tenant_id(self) -> str:
        """Return the tenant that its memory counts for."""
        ...

    @property
    def owner(self) -> str:
        """Return the owner, which alone may take the session up."""
        ...

    @property
    def size(self) -> int:
        """Return the bytes that the session takes without a connection."""
        ...

    async def displace(self) -> None:
        """End its connection, because its client has another one. Return once the session is released."""
        ...

    def end(self) -> None:
        """End the session and all that it runs."""
        ...


S = TypeVar("S", bound=Session)


@dataclass(frozen=True, slots=True)
class _Kept(Generic[S]):
    session: S
    size: int
    timer: asyncio.TimerHandle


class KeptSessions(Generic[S]):
    """Sessions by id: connected ones, and ones without a connection, the longest lost first."""

    def __init__(self) -> None:
        self.ended = dict.fromkeys((RESUMED, EXPIRED, EVICTED), 0)  # number of kept sessions, by what ended the time
        self.bytes = 0
        self.awaited: set[str] = set()  # ids of sessions of an earlier process that are not restored yet
        self.is_stored = False  # sessions outlive the process, which is started again
        self.has_predecessor = False  # another process still has the store, with sessions that are not known here
        self._connected: dict[str, S] = {}
        self._kept: OrderedDict[str, _Kept[S]] = OrderedDict()
        self._by_tenant: Counter[str] = Counter()  # bytes

    def __len__(self) -> int:
        """Return the number of sessions without a connection."""
        return len(self._kept)

    def connect(self, session: S) -> None:
        """Register a session that has a connection."""
        self._connected[session.id] = session

    def release(self, session: S, *, keeps: bool) -> None:
        """Unregister the connection of a session. keeps: whether its client may come back; else it is ended."""
        del self._connected[session.id]
        if keeps:
            self.keep(session)
        else:
            session.end()

    def keep(self, session: S) -> None:
        """Keep a session without a connection, and end others beyond the bounds."""
        size = max(session.size, MIN_SESSION_BYTES)
        timer = asyncio.get_running_loop().call_later(KEEP_SECONDS, self._end, session.id, EXPIRED)
        self._kept[session.id] = _Kept(session, size, timer)
        self.bytes += size
        self._by_tenant[session.tenant_id] += size
        while self._by_tenant[session.tenant_id] > MAX_TENANT_BYTES:
            self._evict(session.tenant_id)
        while self.bytes > MAX_BYTES:
            [(largest, _)] = self._by_tenant.most_common(1)
            self._evict(largest)

    def check(self, session_id: str, owner: str) -> None:
        """Raise `ApiError` (404) unless this owner has such a session. That of another owner is as unknown. One that is
        being restored raises it too (503).
        """
        is_known = session_id in self._kept or session_id in self._connected
        if session_id in self.awaited or (self.has_predecessor and not is_known):
            message = f"the session {session_id[:80]!r} is being restored"
            raise ApiError(503, message, code="engine_unavailable", headers={"Retry-After": "1"})
        kept = self._kept.get(session_id)
        session = self._connected.get(session_id) if kept is None else kept.session
        if session is None or session.owner != owner:
            end = "" if self.is_stored else ", and without --store it ends with its server process"
            raise ApiError(
                404,
                f"there is no session {session_id[:80]!r}; a session is kept for {KEEP_SECONDS:g} s after its "
                f"connection was lost{end}; open a new one without the parameter session",
                param="session",
                code="session_not_found",
            )

    async def take(self, session_id: str, owner: str) -> S:
        """Return a session for a new connection, which is then to be registered. The client may notice the loss of its
        earlier connection first, so that one is ended. Raises `ApiError` as `check`.
        """
        self.check(session_id, owner)
        if (connected := self._connected.get(session_id)) is not None:
            await connected.displace()
        self.check(session_id, owner)
        if session_id not in self._kept:
            message = f"the session {session_id[:80]!r} was taken up by another connection at the same time"
            raise ApiError(409, message, param="session", code="session_taken")
        return self._remove(session_id, RESUMED)

    def _evict(self, tenant: str) -> None:
        """End the session of a tenant whose connection was lost first."""
        self._end(next(i for i, kept in self._kept.items() if kept.session.tenant_id == tenant), EVICTED)

    def _end(self, session_id: str, reason: str) -> None:
        self._remove(session_id, reason).end()

    def _remove(self, session_id: str, reason: str) -> S:
        kept = self._kept.pop(session_id)
        kept.timer.cancel()
        self.ended[reason] += 1
        self.bytes -= kept.size
        tenant = kept.session.tenant_id
        self._by_tenant[tenant] -= kept.size
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]
        return kept.session
