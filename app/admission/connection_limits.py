"""Limits of open connections, in total and per client address. Checked before a request is read or a key is known."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Container

from app.admission.addresses import client_network
from app.errors import ApiError

RESERVED_FILES = 96  # open files for the engine, logs, static files, and connections that are being accepted or refused
DEFAULT_PER_ADDRESS = 256
MAX_LINGERING = 16  # refused connections that stay open until the client has sent a request and read the answer
MAX_DISCARDING = 4  # connections whose unread bodies are read and discarded, which takes as long as reading them
RETRY_SECONDS = 5  # it is unknown when another connection ends
TOTAL_LIMIT, ADDRESS_LIMIT = "max_connections", "max_connections_per_address"

Release = Callable[[], None]


class ConnectionLimits:
    """Open connections by client address, WebSockets included. Memory is bounded by the number of open connections."""

    def __init__(
        self, total: int = sys.maxsize, per_address: int | None = 0, proxies: Container[str] = frozenset()
    ) -> None:
        """per_address: 0: no limit; None: the default, which does not apply to loopback addresses and to `proxies`, as
        each of their connections may be of another client.
        """
        self.open = 0
        self.refused = {TOTAL_LIMIT: 0, ADDRESS_LIMIT: 0}
        self._total = total
        self._per_address = per_address
        self._proxies = proxies
        self._lingering: dict[object, Callable[[], None]] = {}  # functions that close them, oldest first
        self._discarding = 0
        self._by_network: Counter[str] = Counter()

    def enter(self, client: tuple[str, int] | None) -> Release:
        """Count a connection. Return a function to call once when it is lost. Raises `ApiError` (429, 503)."""
        network = client_network(client)
        limit = self._limit(client, network)
        if limit and self._by_network[network] >= limit:
            self.refused[ADDRESS_LIMIT] += 1
            raise _refusal(429, ADDRESS_LIMIT, f"This address has {limit:,} connections open, which is the limit")
        if self.open >= self._total:
            self.refused[TOTAL_LIMIT] += 1
            raise _refusal(503, TOTAL_LIMIT, f"The server has {self._total:,} connections open, which is the limit")
        self.open += 1
        self._by_network[network] += 1

        def release() -> None:
            self.open -= 1
            self._by_network[network] -= 1
            if not self._by_network[network]:
                del self._by_network[network]

        return release

    def linger(self, close: Callable[[], None]) -> Release:
        """Return a function to call when a refused connection is lost. If too many are open, the oldest is closed, so
        that the request of the latest one can arrive: it may be a probe.
        """
        entry = object()
        self._lingering[entry] = close
        if len(self._lingering) > MAX_LINGERING:
            oldest = next(iter(self._lingering))
            self._lingering.pop(oldest)()

        def release() -> None:
            self._lingering.pop(entry, None)

        return release

    def discard(self) -> Release | None:
        """Return a function to call when the rest of a body was discarded, or None if that happens on too many
        connections.
        """
        if self._discarding >= MAX_DISCARDING:
            return None
        self._discarding += 1

        def release() -> None:
            self._discarding -= 1

        return release

    def _limit(self, client: tuple[str, int] | None, network: str) -> int:
        if self._per_address is not None:
            return self._per_address
        is_exempt = not network or (client is not None and client[0] in self._proxies)
        return 0 if is_exempt else DEFAULT_PER_ADDRESS


def _refusal(status: int, name: str, message: str) -> ApiError:
    return ApiError(
        status,
        f"{message} ({name}). Close one, or retry in {RETRY_SECONDS} s.",
        code=f"{name}_exceeded",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )
