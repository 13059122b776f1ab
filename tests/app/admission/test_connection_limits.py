"""Limits of connections by address and in total, and of WebSockets by tenant and after floods."""

from __future__ import annotations

import pytest

from app.admission.addresses import AddressList
from app.admission.connection_limits import (
    ADDRESS_LIMIT,
    DEFAULT_PER_ADDRESS,
    MAX_LINGERING,
    TOTAL_LIMIT,
    ConnectionLimits,
)
from app.admission.tenants import ANONYMOUS, Tenant, anonymous, key_digest
from app.admission.websocket_limits import (
    DEFAULT_MAX_WEBSOCKETS,
    FLOOD_SECONDS,
    MAX_FLOODERS,
    MAX_FLOODS,
    WebSocketLimits,
)
from app.errors import ApiError

KEY = Tenant(name="anna", digest=key_digest("a"))
HOME = "192.0.2.1"


def refusal(call, *arguments) -> ApiError:
    with pytest.raises(ApiError) as raised:
        call(*arguments)
    return raised.value


@pytest.mark.parametrize(
    ("per_address", "address", "limit"),
    [
        (None, HOME, DEFAULT_PER_ADDRESS),
        (None, "127.0.0.1", None),
        (None, "::1", None),
        (None, "10.1.2.3", None),  # a trusted proxy
        (0, HOME, None),
        (3, HOME, 3),
        (3, "127.0.0.1", 3),
        (3, "10.1.2.3", 3),
    ],
)
def test_an_address_has_its_limit(per_address: int | None, address: str, limit: int | None):
    """The default exempts loopback and trusted proxies, and a configured number holds for every address."""
    limits = ConnectionLimits(1000, per_address, AddressList("10.1.0.0/16"))
    for _ in range(limit or 2 * DEFAULT_PER_ADDRESS):
        limits.enter((address, 5))
    if limit is not None:
        error = refusal(limits.enter, (address, 6))
        assert (error.status, error.code) == (429, "max_connections_per_address_exceeded")
        assert int(error.headers["Retry-After"]) > 0 and ADDRESS_LIMIT in str(error) and f"{limit} conn" in str(error)
        limits.enter(("198.51.100.7", 5))
        assert limits.refused == {TOTAL_LIMIT: 0, ADDRESS_LIMIT: 1}


def test_an_ipv6_network_is_one_address_and_a_unix_socket_is_none():
    """A subscriber has all addresses of a /64 network."""
    limits = ConnectionLimits(1000, None)
    for number in range(DEFAULT_PER_ADDRESS):
        limits.enter((f"2001:db8::{number:x}", 5))
        limits.enter(None)
    assert refusal(limits.enter, ("2001:db8::ffff", 5)).status == 429
    limits.enter(("2001:db8:0:1::1", 5))
    limits.enter(None)


def test_the_total_has_a_limit_and_ended_connections_make_room():
    """No state remains for addresses without a connection."""
    limits = ConnectionLimits(2, None)
    releases = [limits.enter((HOME, 5)), limits.enter(("127.0.0.1", 5))]
    error = refusal(limits.enter, (HOME, 6))
    assert (error.status, error.code, limits.refused[TOTAL_LIMIT]) == (503, "max_connections_exceeded", 1)
    assert "Retry-After" in error.headers and "2 connections" in str(error)
    for release in releases:
        release()
    assert limits.open == 0 and not limits._by_network
    limits.enter((HOME, 7))


def test_few_refused_connections_stay_open():
    """Beyond the limit the oldest is closed, so that the request of the latest can arrive."""
    limits, closed = ConnectionLimits(), []
    releases = [limits.linger(lambda number=number: closed.append(number)) for number in range(MAX_LINGERING)]
    assert closed == []
    limits.linger(lambda: closed.append("latest"))
    assert closed == [0]
    for release in releases:  # also that of the one that was closed
        release()
    for number in range(MAX_LINGERING - 1):
        limits.linger(lambda number=number: closed.append(number))
    assert closed == [0]


@pytest.mark.parametrize(
    ("listed", "address", "is_in"),
    [
        ("127.0.0.1,::1", "::1", True),
        ("127.0.0.1, 10.0.0.0/8", "10.9.9.9", True),
        ("10.0.0.0/8", "11.0.0.0", False),
        ("10.0.0.0/8", "2001:db8::1", False),
        ("*", "2001:db8::1", True),
        ("*", "proxy", False),
        ("proxy.example,", HOME, False),
    ],
)
def test_a_list_of_addresses_has_addresses_and_networks(listed: str, address: str, is_in: bool):
    """The list has the form of FORWARDED_ALLOW_IPS."""
    assert (address in AddressList(listed)) is is_in


@pytest.mark.parametrize(
    ("default", "tenant", "limit"),
    [
        (None, KEY, DEFAULT_MAX_WEBSOCKETS),
        (None, anonymous(HOME), DEFAULT_MAX_WEBSOCKETS),
        (None, ANONYMOUS, None),
        (0, KEY, None),
        (2, ANONYMOUS, 2),
        (2, Tenant(name="b", digest=key_digest("b"), max_websockets=5), 5),
        (2, Tenant(name="b", digest=key_digest("b"), max_websockets=0), None),
    ],
)
def test_a_tenant_has_its_limit_of_websockets(default: int | None, tenant: Tenant, limit: int | None):
    """It is the tenant's own, else the option's, else the default, which exempts loopback without keys."""
    limits = WebSocketLimits(default, lambda: 0.0)
    opened = [limits.opened(tenant) for _ in range(limit or 2 * DEFAULT_MAX_WEBSOCKETS)]
    for each in opened:
        limits.check(tenant, HOME)
        each.__enter__()
    if limit is not None:
        error = refusal(limits.check, tenant, HOME)
        assert (error.status, error.code) == (429, "max_websockets_exceeded") and "Retry-After" in error.headers
        limits.check(Tenant(name="other", digest=key_digest("o")), HOME)
    for each in opened:
        each.__exit__(None, None, None)
    limits.check(tenant, HOME)
    assert not limits._open


def test_a_client_that_floods_is_refused_for_the_rest_of_the_minute():
    """Its key at another address and another key at its address are not refused."""
    now = 100.0
    limits = WebSocketLimits(None, lambda: now)
    for _ in range(MAX_FLOODS - 1):
        limits.count_flood(KEY, HOME)
        now += 1
    limits.check(KEY, HOME)
    assert limits.delay(KEY, HOME) == 0
    limits.count_flood(KEY, HOME)
    assert limits.delay(KEY, HOME) > 0
    error = refusal(limits.check, KEY, HOME)
    assert (error.status, error.code) == (429, "websocket_floods_exceeded")
    assert error.headers["Retry-After"] == str(int(FLOOD_SECONDS) - MAX_FLOODS + 1)
    limits.check(KEY, "192.0.2.2")
    limits.check(Tenant(name="bert", digest=key_digest("b")), HOME)
    now += FLOOD_SECONDS - MAX_FLOODS + 1
    limits.check(KEY, HOME)
    assert limits.delay(KEY, HOME) == 0


def test_loopback_without_a_key_is_delayed_and_not_refused_after_floods_and_few_flooders_are_remembered():
    """Loopback may be a proxy of many clients, and the oldest flooders are forgotten."""
    limits = WebSocketLimits(None, lambda: 0.0)
    for _ in range(MAX_FLOODS):
        limits.count_flood(ANONYMOUS, "")
    limits.check(ANONYMOUS, "")
    assert limits.delay(ANONYMOUS, "") > 0
    for number in range(MAX_FLOODERS + 10):
        limits.count_flood(KEY, str(number))
    assert len(limits._floods) == MAX_FLOODERS
