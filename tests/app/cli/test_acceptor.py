"""Acceptor: connections of a listening socket."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator

import pytest
import uvloop

from app.cli import acceptor
from app.cli.acceptor import Acceptor

CLIENTS = 10


class Recorder(asyncio.Protocol):
    """Protocol that appends itself to a list when its connection is made."""

    def __init__(self, made: list[Recorder]) -> None:
        self.made = made
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.made.append(self)


class FullSocket(socket.socket):
    """Listening socket of a process that has no free descriptor for a while."""

    failures = 1

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with FullSocket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.failures = 0
        sock.bind(("127.0.0.1", 0))
        yield sock


@pytest.fixture
def clients(listening: socket.socket) -> Iterator[list[socket.socket]]:
    listening.listen(CLIENTS)
    connected = [socket.create_connection(listening.getsockname()) for _ in range(CLIENTS)]
    yield connected
    for client in connected:
        client.close()


async def all_made(made: list[Recorder]) -> None:
    async with asyncio.timeout(10):
        while len(made) < CLIENTS:
            await asyncio.sleep(0.005)
    for protocol in made:
        assert protocol.transport is not None
        protocol.transport.close()


async def test_connections_that_wait_are_accepted_together(listening, clients):
    made: list[Recorder] = []
    accepting = Acceptor(listening, lambda: Recorder(made), CLIENTS)
    calls = 0

    def accept() -> None:
        nonlocal calls
        calls += 1
        accepting.accept()

    asyncio.get_running_loop().add_reader(listening, accept)
    await all_made(made)
    assert calls == 1
    accepting.close()


async def test_one_turn_accepts_a_limited_number(listening, clients, monkeypatch):
    monkeypatch.setattr(acceptor, "MAX_PER_TURN", 3)
    made: list[Recorder] = []
    accepting = Acceptor(listening, lambda: Recorder(made), CLIENTS)
    asyncio.get_running_loop().remove_reader(listening)
    accepting.accept()
    await asyncio.sleep(0.05)
    assert len(made) == 3
    accepting.accept()
    accepting.accept()
    accepting.accept()
    await all_made(made)
    accepting.close()


async def test_connections_wait_while_no_descriptor_is_free(listening, clients, monkeypatch, caplog):
    monkeypatch.setattr(acceptor, "RETRY_SECONDS", 0.05)
    listening.failures = 1
    made: list[Recorder] = []
    accepting = Acceptor(listening, lambda: Recorder(made), CLIENTS)
    await all_made(made)
    assert "no connection can be accepted: Too many open files" in caplog.text
    accepting.close()


def test_it_may_be_closed_again_after_its_socket(listening):
    """uvicorn closes the sockets before the servers, which a drain may have closed already."""

    async def close_twice() -> None:
        accepting = Acceptor(listening, lambda: Recorder([]), CLIENTS)
        accepting.close()
        listening.close()
        accepting.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(close_twice())


async def test_nothing_is_accepted_after_the_end(listening, clients):
    made: list[Recorder] = []
    accepting = Acceptor(listening, lambda: Recorder(made), CLIENTS)
    accepting.close()
    accepting.close()
    await asyncio.sleep(0.05)
    assert made == []
