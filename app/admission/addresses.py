"""Addresses of clients and proxies."""

from __future__ import annotations

import ipaddress
from contextlib import suppress

IPV6_PREFIX = 64  # bits; the network that one subscriber or machine gets, with all of its addresses


def client_network(client: tuple[str, int] | None) -> str:
    """Return the network that counts as one client: an IPv4 address or an IPv6 /64 network. Empty for loopback and for
    connections without an IP address, such as those of a Unix socket.

    client: of the ASGI scope, in which uvicorn has replaced the address of a trusted proxy by the forwarded one.
    """
    try:
        address = ipaddress.ip_address(client[0]) if client else None
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address is None or address.is_loopback:
        return ""
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((int(address), IPV6_PREFIX), strict=False))


class AddressList:
    """Addresses and networks, separated by commas; "*" is all of them. Other names contain no address."""

    def __init__(self, listed: str) -> None:
        entries = [entry.strip() for entry in listed.split(",")]
        self._has_all = "*" in entries
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in entries:
            with suppress(ValueError):
                self._networks.append(ipaddress.ip_network(entry))

    def __contains__(self, name: object) -> bool:
        try:
            address = ipaddress.ip_address(str(name))
        except ValueError:
            return False
        return self._has_all or any(address in network for network in self._networks)
