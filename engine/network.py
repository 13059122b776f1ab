"""Addresses, tokens and certificates for engines behind TCP, at both ends of a connection."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError

MIN_TOKEN_CHARACTERS = 16
MAX_TOKEN_CHARACTERS = 1024  # so that a first frame with it is within its limit
OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO

# A connection with an end that has vanished without a sign is closed after this time, with or without unread data.
KEEPALIVE_IDLE_SECONDS, KEEPALIVE_INTERVAL_SECONDS, KEEPALIVE_PROBES = 10, 5, 4
UNACKNOWLEDGED_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of an engine."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, option: str) -> Address:
        """Return the address that `text` names as HOST:PORT. Raises `ConfigError`, which names the option."""
        found = re.fullmatch(r"(?:\[([\da-fA-F:.]+)\]|([^\s:\[\]/]+)):(\d{1,5})", text)
        if found is None or int(found[3]) > 65535:
            raise ConfigError(f"{option} must be HOST:PORT, such as 10.0.0.2:9400 or [::1]:9400, got {text!r}")
        return cls(found[1] or found[2], int(found[3]))

    @property
    def is_loopback(self) -> bool:
        """Return whether it is a loopback address, or localhost."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_token(path: str) -> str:
    """Return the token in a file, without the white space around it. Raises `ConfigError`.

    Only this user may have access to it: a token admits its bearer to all prompts and answers of an engine. A file of
    root may be readable for a group, as PostgreSQL's keys may: so Kubernetes gives a Secret to an ordinary user.
    """
    try:
        status = Path(path).stat()
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token_file: {error}") from None
    is_shared_by_root = status.st_uid == 0 != os.geteuid()
    if status.st_mode & OTHER_USERS & ~(stat.S_IRGRP if is_shared_by_root else 0):
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(
            f"token_file {path} must be accessible to its owner only, but its mode is {mode:03o}; run chmod 600 {path}"
        )
    if not MIN_TOKEN_CHARACTERS <= len(token) <= MAX_TOKEN_CHARACTERS:
        raise ConfigError(
            f"token_file {path} must have {MIN_TOKEN_CHARACTERS} to {MAX_TOKEN_CHARACTERS} characters, got {len(token)}"
        )
    return token


def engine_tls(certificate: str, key: str | None) -> ssl.SSLContext:
    """Return the context of an engine. key: None if the certificate's file has it. Raises `ConfigError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Without renegotiation, which is gone since TLS 1.3, a write never waits for data from the other side.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_cert {certificate} cannot be used with tls_key {key}: {error}") from None
    return context


def api_tls(authorities: str) -> ssl.SSLContext:
    """Return the context of an API process, which trusts the certificate authorities of a file. Raises `ConfigError`.

    The names in an engine's certificate must include the host by which it is addressed.
    """
    try:
        context = ssl.create_default_context(cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"engines_ca {authorities} cannot be used: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def bind(address: Address) -> socket.socket:
    """Return a socket that is bound to an address and does not listen yet. Raises `ConfigError`."""
    try:
        family, _, _, _, resolved = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as on_error:
            sock = on_error.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(resolved)
            on_error.pop_all()
    except OSError as error:
        raise ConfigError(f"listen {address} cannot be used: {error.strerror}") from None
    return sock


def tune(sock: socket.socket) -> None:
    """Send small frames at once, and detect that the other end has vanished."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", 1000 * UNACKNOWLEDGED_SECONDS),
    ):
        if hasattr(socket, name):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
