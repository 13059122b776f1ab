"""Client networks of connection addresses."""

from __future__ import annotations

import pytest

from app.admission.addresses import client_network
from app.admission.tenants import ANONYMOUS, anonymous


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.5", ""),
        ("::1", ""),
        ("::ffff:127.0.0.1", ""),
        ("testclient", ""),
        ("", ""),
    ],
)
def test_an_ipv4_address_or_an_ipv6_64_network_is_one_client(address: str, network: str):
    """Loopback and non-IP addresses have no network."""
    assert client_network((address, 1)) == network


def test_a_connection_without_an_address_is_local():
    """A Unix socket has no address."""
    assert client_network(None) == ""


def test_networks_are_separate_tenants_with_one_name_and_own_nothing():
    """They take turns separately, and share metrics, streams and the prefix cache."""
    tenants = [anonymous(network) for network in ("", "192.0.2.7", "192.0.2.8")]
    assert tenants[0] is ANONYMOUS
    assert len({tenant.id for tenant in tenants}) == 3
    assert {(tenant.name, tenant.owner) for tenant in tenants} == {("anybody", "")}
