"""Listener: the listening socket, bound by this server alone, shared with another server, or passed to it.

A server with a shared or passed socket can be replaced without a refused connection: the next one accepts once its
model is loaded, and the previous one leaves new connections to it when it drains. SO_REUSEPORT alone divides new
connections among the servers of a port, and those that one of them has not accepted are reset when it closes its
socket. So the latest server directs all new connections to itself, by a program of one instruction that selects its
socket (Linux 4.5).
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import logging
import os
import socket
import struct
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from app.http.slow_client import TCP_USER_TIMEOUT_SECONDS, set_tcp_user_timeout

log = logging.getLogger("carousel")

BACKLOG = 2048  # connections waiting to be accepted
FIRST_PASSED_DESCRIPTOR = 3  # sd_listen_fds(3)
SO_ATTACH_REUSEPORT_CBPF = 51  # socket(7); Python has no name for it
RETURN_CONSTANT = 0x06  # BPF_RET | BPF_K
LISTEN_STATE = "0A"  # in /proc/net/tcp
TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class Origin(enum.Enum):
    """Owner of the listening socket."""

    OWN = enum.auto()  # bound by this server, which accepts at once and answers 503 until the model is loaded
    SHARED = enum.auto()  # with --reuse-port
    PASSED = enum.auto()  # by a service manager, which keeps it open
    COMMON = enum.auto()  # to several API processes; the first ones accept at once
    REJOINED = enum.auto()  # the same, for one that replaces another: it accepts when it is connected to engines


class Listener:
    """Socket on which a server listens or will listen."""

    def __init__(self, sock: socket.socket, origin: Origin, *, is_port_chosen: bool = True) -> None:
        """is_port_chosen: by the operator, and so the next process has it too."""
        self.sock = sock
        self.known_port: int | None = sock.getsockname()[1] if is_port_chosen else None
        self._origin = origin

    @classmethod
    def create(cls, host: str, port: int, *, reuse_port: bool, environment: MutableMapping[str, str]) -> Listener:
        """Return the socket that was passed to this process, or bind one, before anything expensive.

        Raises `OSError` whose message names the address or the variable.
        """
        passed = _passed_socket(environment)
        if passed is not None:
            return cls(passed, Origin.PASSED)
        origin = Origin.SHARED if reuse_port else Origin.OWN
        return cls(_bind(host, port, reuse_port=reuse_port), origin, is_port_chosen=port != 0)

    @classmethod
    def of_several(cls, sock: socket.socket, *, replaces: bool, is_port_chosen: bool) -> Listener:
        """Return the listening socket of several API processes. replaces: this process replaces another one."""
        return cls(sock, Origin.REJOINED if replaces else Origin.COMMON, is_port_chosen=is_port_chosen)

    @property
    def accepts_when_loaded(self) -> bool:
        """Return whether connections are accepted only when the model is loaded. Another server may accept until then,
        and connections to a passed socket wait.
        """
        return self._origin not in (Origin.OWN, Origin.COMMON)

    @property
    def has_successor(self) -> bool:
        """Return whether new connections can be left to another server, which has the passed socket or listens."""
        return self._origin is Origin.PASSED or (self._origin is Origin.SHARED and self._num_listening() > 1)

    def take_over(self) -> None:
        """Direct new connections to this server, which has begun to listen as the latest of a shared port."""
        if self._origin is not Origin.SHARED or (index := self._num_listening() - 1) < 1:
            return
        instruction = ctypes.create_string_buffer(struct.pack("=HBBI", RETURN_CONSTANT, 0, 0, index))
        program = struct.pack("@HP", 1, ctypes.addressof(instruction))
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)
        except OSError as error:
            log.warning("new connections are divided among the servers at this port until the others end: %s", error)

    def _num_listening(self) -> int:
        """Return the number of sockets that listen at the same port."""
        port = f":{self.sock.getsockname()[1]:04X}"
        return sum(local.endswith(port) and state == LISTEN_STATE for local, state in _tcp_sockets())


def _tcp_sockets() -> Iterator[tuple[str, str]]:
    """Yield the local address and the state of each TCP socket, as the kernel writes them."""
    for table in TCP_TABLES:
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                yield fields[1], fields[3]


def _passed_socket(environment: MutableMapping[str, str]) -> socket.socket | None:
    """Return the socket that a service manager has passed, and remove its variables, which are not for children."""
    count, pid = environment.pop("LISTEN_FDS", ""), environment.pop("LISTEN_PID", "")
    environment.pop("LISTEN_FDNAMES", None)
    if not count or pid != str(os.getpid()):
        return None
    if count != "1":
        raise OSError(f"LISTEN_FDS must be 1, one socket at which this server listens, got {count}")
    sock = socket.socket(fileno=FIRST_PASSED_DESCRIPTOR)
    sock.set_inheritable(False)
    if sock.type != socket.SOCK_STREAM or sock.family not in (socket.AF_INET, socket.AF_INET6):
        raise OSError("the socket passed with LISTEN_FDS must be a TCP socket")
    set_tcp_user_timeout(sock, TCP_USER_TIMEOUT_SECONDS)
    return sock


def _bind(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    """Return a bound socket. It listens at once, unless it is shared: the address is then ours for certain."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    set_tcp_user_timeout(sock, TCP_USER_TIMEOUT_SECONDS)  # inherited by every connection
    try:
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        if not reuse_port:
            sock.listen(BACKLOG)  # two servers may bind at the same moment
    except OSError as error:
        sock.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return sock
