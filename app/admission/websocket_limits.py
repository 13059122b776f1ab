"""Limits on WebSockets: open ones of each tenant, and new ones after floods of frames."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.admission.tenants import Tenant
from app.errors import ApiError

DEFAULT_MAX_WEBSOCKETS = 64  # for a key, or for an address beyond loopback
RETRY_SECONDS = 5  # it is unknown when an open WebSocket ends
MAX_FLOODS = 10  # closures for floods of frames within `FLOOD_SECONDS`
FLOOD_SECONDS = 60.0
# delay of a handshake's answer after so many floods: a handshake costs more than the frames of a flood
DELAY_SECONDS = 1.0
MAX_FLOODERS = 4096  # remembered clients

Client = tuple[str, str]  # network and tenant, so that a client cannot lock out others at its address or of its key


class WebSocketLimits:
    """Open WebSockets by tenant, and recent floods by client. Loopback clients without a key have no limit unless the
    option sets one, as a proxy there may forward many clients.
    """

    def __init__(self, default: int | None, clock: Callable[[], float]) -> None:
        """default: limit of tenants without their own. 0: no limit; None: `DEFAULT_MAX_WEBSOCKETS`."""
        self._default = default
        self._clock = clock
        self._open: Counter[str] = Counter()
        self._floods: OrderedDict[Client, deque[float]] = OrderedDict()  # times of floods; the most recent flooder last

    def check(self, tenant: Tenant, network: str) -> None:
        """Raise `ApiError` (429) unless a client may open another WebSocket.

        network: of the client, from `client_network`.
        """
        self._check_floods((network, tenant.id))
        limit = self._limit(tenant)
        if limit and self._open[tenant.id] >= limit:
            message = f"This client has {limit:,} WebSockets open, which is its limit max_websockets"
            raise _refusal(f"{message}. Close one, or retry in {RETRY_SECONDS} s.", "max_websockets", RETRY_SECONDS)

    @contextmanager
    def opened(self, tenant: Tenant) -> Iterator[None]:
        """Count a WebSocket while it is open."""
        self._open[tenant.id] += 1
        try:
            yield
        finally:
            self._open[tenant.id] -= 1
            if not self._open[tenant.id]:
                del self._open[tenant.id]

    def count_flood(self, tenant: Tenant, network: str) -> None:
        """Count a WebSocket that was closed for a flood of frames."""
        client = network, tenant.id
        times = self._floods.pop(client, None) or deque(maxlen=MAX_FLOODS)
        times.append(self._clock())
        self._floods[client] = times
        if len(self._floods) > MAX_FLOODERS:
            self._floods.popitem(last=False)

    def delay(self, tenant: Tenant, network: str) -> float:
        """Return the seconds by which to delay the answer to a client's handshake."""
        return DELAY_SECONDS if self._flooded_seconds((network, tenant.id)) > 0 else 0.0

    def _flooded_seconds(self, client: Client) -> float:
        """Return the seconds until a client has fewer floods than the limit; negative: since then."""
        times = self._floods.get(client)
        if times is None or len(times) < MAX_FLOODS:
            return -math.inf
        return FLOOD_SECONDS - (self._clock() - times[0])

    def _check_floods(self, client: Client) -> None:
        seconds = self._flooded_seconds(client)
        if seconds > 0 and client != ("", ""):  # this client may be a proxy of many clients
            retry = math.ceil(seconds)
            message = f"{MAX_FLOODS} WebSockets of this client were closed for floods of frames within a minute"
            raise _refusal(f"{message}. Retry in {retry} s.", "websocket_floods", retry)

    def _limit(self, tenant: Tenant) -> int:
        limit = self._default if tenant.max_websockets is None else tenant.max_websockets
        if limit is None:
            limit = DEFAULT_MAX_WEBSOCKETS if tenant.id else 0
        return limit


def _refusal(message: str, name: str, seconds: int) -> ApiError:
    return ApiError(429, message, code=f"{name}_exceeded", headers={"Retry-After": str(seconds)})
