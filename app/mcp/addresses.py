"""Addresses of MCP servers, as the option `mcp` has them."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from engine.errors import ConfigError

MAX_SERVERS = 16
_NAMED = re.compile(r"([A-Za-z\d._-]{1,64})=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address of an MCP server. name: for clients. url: without secrets. authorization: value of that header; empty for
    none.
    """

    name: str
    url: str
    authorization: str = field(default="", repr=False)


def read_addresses(text: str | None) -> tuple[ServerAddress, ...]:
    """Return the entries of the option, each `URL` or `NAME=URL`. Raises `ConfigError`, without the URL's secret."""
    if text is None:
        return ()
    entries = list(filter(None, map(str.strip, text.split(","))))
    if not 0 < len(entries) <= MAX_SERVERS:
        raise ConfigError(f"mcp must be 1 to {MAX_SERVERS} URLs of MCP servers, got {len(entries)}")
    addresses = tuple(_parse(entry, number) for number, entry in enumerate(entries, start=1))
    names = [address.name for address in addresses]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"mcp: two servers have the name {twice!r}; NAME=URL gives one of them another name")
    return addresses


def _parse(entry: str, number: int) -> ServerAddress:
    named = _NAMED.fullmatch(entry)
    name, url = named.groups() if named else ("", entry)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    if parts.scheme not in ("http", "https") or not host or parts.fragment or re.search(r"[^!-~]", url):
        raise ConfigError(
            f"mcp: entry {number} must be a URL such as https://tools.example.com/mcp, or NAME=URL with a name of "
            "letters, digits, '.', '-' and '_'"
        )
    shown_host = f"[{host}]" if ":" in host else host
    place = shown_host if port is None else f"{shown_host}:{port}"
    bare = parts._replace(netloc=place).geturl()
    return ServerAddress(name or place, bare, _authorization(parts.username, parts.password))


def _authorization(user: str | None, password: str | None) -> str:
    """Return the header for the secret of a URL: of TOKEN@host a bearer token, of USER:PASSWORD@host both."""
    if password is None:
        return f"Bearer {unquote(user)}" if user else ""
    credentials = f"{unquote(user or '')}:{unquote(password)}"
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"
