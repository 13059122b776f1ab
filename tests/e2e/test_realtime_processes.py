"""Realtime sessions with `carousel serve --api-processes 2`: taken up over connections to either process."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import Server
from tests.e2e.test_api_processes import OPTIONS, processes, wait_until
from tests.e2e.test_journal_realtime import begin, opened, without_ids
from tests.e2e.test_realtime import Raw
from tests.limits import HANG_SECONDS


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Return a function that starts a service of two API processes."""
    servers: list[Server] = []

    def begin_service(store: str) -> Server:
        servers.append(Server.start(*OPTIONS, "--store", store))
        return servers[-1]

    yield begin_service
    for server in servers:
        assert server.stop() == -signal.SIGTERM
        assert not any("Traceback" in line for line in server.log)


async def connection_to(service: Server, index: int) -> socket.socket:
    """Return a connection that a process has accepted."""
    other = processes(service, "supervised_api")[1 - index]
    host, port = service.url.removeprefix("http://").split(":")
    other.suspend()
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"}"), HANG_SECONDS)
    finally:
        other.resume()
    connection: socket.socket = writer.get_extra_info("socket").dup()
    writer.transport.abort()
    return connection


@asynccontextmanager
async def opened_at(service: Server, index: int, session: str = "") -> AsyncIterator[Raw]:
    """Yield a connection that reaches a process, to a new session or to one that is taken up."""
    url = f"{service.url.replace('http', 'ws')}/v1/realtime" + (f"?session={session}" if session else "")
    async with connect(url, sock=await connection_to(service, index)) as client:
        yield Raw(client)


async def test_a_session_is_taken_up_at_the_other_process(start: Callable[..., Server]):
    """Its answer goes on with the same events and text, and with the same close code at the end."""
    service = start("none")
    async with opened_at(service, 0) as client:
        await begin(client)
        expected = (await client.until("response.done"))["response"]
    async with opened_at(service, 0) as client:
        session = await begin(client)
        for _ in range(20):
            delta = await client.until("response.output_text.delta")
        client.socket.transport.abort()
    async with opened_at(service, 1, session) as client:
        assert (await client.until("session.created"))["session"]["id"] == session
        done = (await client.until("response.done"))["response"]
        assert done["id"] == delta["response_id"] and without_ids(done["output"]) == without_ids(expected["output"])
        deltas = [event["delta"] for event in client.seen if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == done["output"][0]["content"][0]["text"]
        assert len({event["event_id"] for event in client.seen}) == len(client.seen)
        async with opened_at(service, 0, session) as again:
            await again.until("session.created")
            with pytest.raises(ConnectionClosed) as closed:
                await client.until("error")
            assert closed.value.rcvd is not None and "taken up" in closed.value.rcvd.reason
            await again.socket.send(b"binary")
            with pytest.raises(ConnectionClosed) as closed:
                await again.until("error")
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1003


async def test_a_session_goes_on_when_its_process_is_killed(start: Callable[..., Server], tmp_path: Path):
    """With a store, over a connection to any process, once its own has been started again."""
    service = start(str(tmp_path / "s.db"))
    async with opened_at(service, 0) as client:
        await begin(client)
        expected = (await client.until("response.done"))["response"]
    for reached in (0, 1):
        victim = processes(service, "supervised_api")[1]
        async with opened_at(service, 1) as client:
            session = await begin(client)
            for _ in range(20):
                delta = await client.until("response.output_text.delta")
            victim.kill()
            with pytest.raises(ConnectionClosed):
                await client.until("error")
        if reached == 1:
            wait_until(lambda: len(processes(service, "supervised_api")) == 2)
        async with opened(service, session) as client:
            created = (await client.until("session.created"))["session"]
            assert created["id"] == session and created["instructions"] == "Be brief."
            done = (await client.until("response.done"))["response"]
            assert done["id"] == delta["response_id"] and without_ids(done["output"]) == without_ids(expected["output"])
        wait_until(lambda: len(processes(service, "supervised_api")) == 2)


async def test_a_session_without_a_store_is_lost_with_its_process(start: Callable[..., Server]):
    """The refusal says why, and is retried before."""
    service = start("none")
    victim = processes(service, "supervised_api")[1]
    async with opened_at(service, 1) as client:
        session = await begin(client)
        victim.kill()
        with pytest.raises(ConnectionClosed):
            await client.until("error")
    with pytest.raises(InvalidStatus) as refused:
        async with opened(service, session):
            pass
    assert b"session_not_found" in refused.value.response.body and b"--store" in refused.value.response.body
