"""Engines that come and go, behind a name whose addresses change."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.engine_client.client import MODEL_REPLACED, EngineClient, EngineUnavailable
from app.engine_client.engine_sources import DnsEngines
from app.engine_client.member import EngineState
from app.engine_client.tcp_engine import EngineAccess
from app.remote_settings import DnsName
from app.streams.status import EngineMoveEvent
from engine.network import Address
from engine.types import EndEvent, TokenEvent
from tests.app.engine_client.test_client import CONFIG, follow, request, tokens_of
from tests.app.engine_client.test_tcp_engine import TOKEN, ListeningEngine, until
from tests.fakes import text_alone
from tests.limits import HANG_SECONDS

NAME = "engines.example"


class NameService:
    """Addresses of a name, which a test changes. An engine of a test has an address of its own on the same port."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: list[str] = []
        self.failure: OSError | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.look_ups = 0
        self._resolve = socket.getaddrinfo
        monkeypatch.setattr("app.engine_client.engine_sources.socket.getaddrinfo", self.look_up)
        monkeypatch.setattr("app.engine_client.membership.LOOK_SECONDS", 0.01)

    def look_up(self, host, port, *args, **options):
        if host != NAME:
            return self._resolve(host, port, *args, **options)
        self.look_ups += 1
        self.gate.wait()
        if self.failure is not None:
            raise self.failure
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in host], socket.SOCK_STREAM, 6, "", (host, port)) for host in self.addresses]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> NameService:
    monkeypatch.setattr("app.engine_client.restart_policy.INITIAL_BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr("app.engine_client.tcp_engine.INITIAL_RETRY_SECONDS", 0.01)
    return NameService(monkeypatch)


@asynccontextmanager
async def client_of(port: int) -> AsyncIterator[EngineClient]:
    """Yield a started client of the engines behind the name."""
    client = EngineClient(CONFIG, remote=DnsEngines(DnsName(NAME, port), EngineAccess(TOKEN)))
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


def states(client: EngineClient) -> dict[str, EngineState]:
    return {member.name.removeprefix("engine "): member.phase for member in client.members}


async def ready(client: EngineClient, *addresses: Address) -> None:
    """Wait until the engines at these addresses, and no others, are ready."""
    await until(lambda: states(client) == {str(address): EngineState.READY for address in addresses})


def engine_at(host: str, port: int = 0, fingerprint: str = "fp_ours") -> ListeningEngine:
    return ListeningEngine(Address(host, port), fingerprint)


async def test_requests_go_on_while_engines_come_and_go(names: NameService, caplog: pytest.LogCaptureFixture):
    """An engine that appears gets requests, and one that has ended leaves its requests to the others."""
    caplog.set_level("INFO", "carousel.client")
    first = engine_at("127.0.0.1")
    port = first.address.port
    async with client_of(port) as client:
        await until(lambda: names.look_ups > 2)
        assert client.state is EngineState.LOADING and client.members == ()
        with pytest.raises(EngineUnavailable):
            client.check(request("early"))
        names.addresses = ["127.0.0.1"]
        await ready(client, Address("127.0.0.1", port))
        answers = [asyncio.create_task(follow(client, request(f"r{i}", 400 + i))) for i in range(4)]
        await until(lambda: client.members[0].load is not None and sum(client.members[0].load.running))
        second = engine_at("127.0.0.2", port)
        names.addresses = ["127.0.0.1", "127.0.0.2"]
        await ready(client, Address("127.0.0.1", port), Address("127.0.0.2", port))
        names.addresses = ["127.0.0.2"]
        seen = names.look_ups
        await until(lambda: names.look_ups > seen + 3)
        assert len(client.members) == 2, "its connection still works"
        first.stop()
        await ready(client, Address("127.0.0.2", port))
        for i, answer in enumerate(answers):
            events = await answer
            assert tokens_of(events) == text_alone([1, 2], 0, 400 + i)
            assert [each.next_engine for each in events if isinstance(each, EngineMoveEvent)] == [None, 1]
        assert [member.index for member in client.members] == [1]
    second.stop()
    lines = [record.getMessage() for record in caplog.records]
    assert "waiting for engines: there is no engine" in lines
    assert f"engine 127.0.0.2:{port} is new" in lines and f"engine 127.0.0.1:{port} is gone" in lines


@pytest.mark.parametrize(
    ("addresses", "used"),
    [
        (["127.0.0.1", "::1", "127.0.0.2", "::2"], ["127.0.0.1:9400", "127.0.0.2:9400"]),
        (["::1", "::2"], ["[::1]:9400", "[::2]:9400"]),
    ],
)
async def test_an_engine_with_two_addresses_is_one_member(names: NameService, addresses: list[str], used: list[str]):
    """IPv6 addresses are used only if the name has no others."""
    names.addresses = addresses
    source = DnsEngines(DnsName(NAME, 9400), EngineAccess(TOKEN))
    assert list(await source.engines()) == [f"engine {address}" for address in used]
    source.close()


@pytest.mark.parametrize("turns", range(6))
async def test_a_look_up_can_be_cancelled_at_any_moment(names: NameService, turns: int):
    """Also while its answer is on its way to the event loop, or a server that stops would wait for it forever."""
    source = DnsEngines(DnsName(NAME, 9400), EngineAccess(TOKEN))
    names.gate.clear()
    look = asyncio.create_task(source.engines())
    await until(lambda: names.look_ups)
    assert source._look_up is not None
    names.gate.set()
    source._look_up.result(HANG_SECONDS)
    for _ in range(turns):
        await asyncio.sleep(0)
    is_over = not look.cancel()
    await asyncio.wait([look])
    assert look.cancelled() is not is_over
    source.close()


async def test_the_failure_of_a_cancelled_look_up_is_not_logged(names: NameService, caplog: pytest.LogCaptureFixture):
    """A server that stops does not wait for it."""
    source = DnsEngines(DnsName(NAME, 9400), EngineAccess(TOKEN))
    names.gate.clear()
    names.failure = socket.gaierror(-2, "Name or service not known")
    look = asyncio.create_task(source.engines())
    await until(lambda: names.look_ups)
    look.cancel()
    await asyncio.wait([look])
    assert source._look_up is not None
    names.gate.set()
    assert isinstance(source._look_up.exception(HANG_SECONDS), OSError)
    for _ in range(5):
        await asyncio.sleep(0)
    source._look_up = names.failure = None
    del look  # with the last reference to the failure
    gc.collect()
    assert caplog.records == []
    source.close()


async def test_requests_wait_while_there_is_no_engine(names: NameService):
    """The only engine is replaced by one at another address, and every answer is whole."""
    first = engine_at("127.0.0.1")
    port = first.address.port
    names.addresses = ["127.0.0.1"]
    async with client_of(port) as client:
        await ready(client, first.address)
        answer = asyncio.create_task(follow(client, request("r", 300)))
        await until(lambda: client.members[0].load is not None and sum(client.members[0].load.running))
        names.addresses = []
        first.stop()
        await until(lambda: client.members == ())
        assert client.state is EngineState.RESTARTING and client.accepts_requests
        late = asyncio.create_task(follow(client, request("late", 5)))
        second = engine_at("127.0.0.2", port)
        names.addresses = ["127.0.0.2"]
        assert tokens_of(await answer) == text_alone([1, 2], 0, 300)
        assert tokens_of(await late) == text_alone([1, 2], 0, 5)
    second.stop()


async def test_engines_stay_while_the_name_service_fails(names: NameService, caplog: pytest.LogCaptureFixture):
    """Its failure is in the log once, and no look-up is added while one has no answer."""
    engine = engine_at("127.0.0.1")
    names.addresses = ["127.0.0.1"]
    async with client_of(engine.address.port) as client:
        await ready(client, engine.address)
        names.failure = socket.gaierror(-2, "Name or service not known")
        seen = names.look_ups
        await until(lambda: names.look_ups > seen + 3)
        assert tokens_of(await follow(client, request("r"))) == text_alone([1, 2], 0, 5)
        names.gate.clear()
        await until(lambda: names.look_ups > seen)
        seen = names.look_ups
        assert tokens_of(await follow(client, request("s", 20))) == text_alone([1, 2], 0, 20)
        assert names.look_ups <= seen + 1
        names.gate.set()
    engine.stop()
    lines = [record.getMessage() for record in caplog.records]
    problem = f"dns://{NAME}:{engine.address.port}: Name or service not known"
    assert lines.count(f"waiting for engines: the engines are not known: {problem}") == 1


@pytest.mark.parametrize("grace", [0.0, 1e9])
async def test_another_model_replaces_one_whose_engines_are_gone(names: NameService, monkeypatch, grace: float):
    """New answers are of the new model. A text that only the old one continues ends with an error, after a while."""
    monkeypatch.setattr("app.engine_client.served_model.MODEL_GRACE_SECONDS", grace)
    old = engine_at("127.0.0.1")
    port = old.address.port
    new = engine_at("127.0.0.2", port, "fp_new")
    names.addresses = ["127.0.0.1"]
    async with client_of(port) as client:
        await ready(client, old.address)
        names.addresses = ["127.0.0.1", "127.0.0.2"]
        await until(lambda: any(member.loading.done > 3 for member in client.members))
        assert client.model.fingerprint == "fp_ours"
        events: list = []
        client.submit(request("r", 3000), events.append)
        await until(lambda: any(isinstance(each, TokenEvent) for each in events))
        names.addresses = ["127.0.0.2"]
        old.stop()
        if grace:
            await until(lambda: len(client.members) == 1 and client.members[0].loading.done > 3)
            assert client.in_flight == 1 and client.model.fingerprint == "fp_ours"
            client.abort("r")
        await ready(client, Address("127.0.0.2", port))
        assert client.model.fingerprint == "fp_new"
        assert tokens_of(await follow(client, request("s"))) == text_alone([1, 2], 0, 5)
        [end] = [each for each in events if isinstance(each, EndEvent)]
        assert (end.code, end.message) == (("", "") if grace else ("model_replaced", MODEL_REPLACED))
    new.stop()
