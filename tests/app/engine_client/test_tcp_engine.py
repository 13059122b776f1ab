"""Engines behind TCP from the API's side: connections that are refused, lost and found again, and drains."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from app.engine_client.client import EngineClient
from app.engine_client.engine_sources import FixedEngines
from app.engine_client.member import EngineState
from app.engine_client.tcp_engine import EngineAccess
from engine.connections import Connections
from engine.heartbeat import Heartbeat
from engine.ipc import ChannelClosed
from engine.listener import Listener
from engine.network import Address, api_tls, bind, engine_tls
from engine.types import Phase, StatusEvent, TokenEvent, WaitReason
from engine.worker import Worker
from tests.app.engine_client.test_client import CONFIG, fake_engine, follow, request, tokens_of
from tests.fakes import CrashInjector, text_alone
from tests.limits import HANG_SECONDS

TOKEN = "a token of an engine"


class ListeningEngine:
    """An engine with a fake model on a thread, behind a port of its own."""

    def __init__(
        self, address: Address | None = None, fingerprint: str = "fp_ours", tls: ssl.SSLContext | None = None
    ) -> None:
        """address: that of an earlier engine."""
        sock = bind(address or Address("127.0.0.1", 0))
        self.address = Address("127.0.0.1", sock.getsockname()[1])
        self.injector = CrashInjector()  # each step takes 2 ms
        engine = fake_engine(CONFIG, lambda *progress: None, crash_injector=self.injector)
        self.engine = engine
        self._wakeup, self._signal = socket.socketpair()
        info = msgspec.structs.replace(engine.info, fingerprint=fingerprint)
        self.connections = Connections(listener=Listener(sock, info, TOKEN, tls), wakeup=self._wakeup)
        self.worker = Worker(self.connections, engine, Heartbeat(), orphan_grace=HANG_SECONDS)
        self._orders: list[Callable[[], object]] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over:
                self.worker.turn()
                while self._orders:
                    self._orders.pop(0)()
        except ChannelClosed:  # it has crashed, or its last connection is closed after a drain
            pass
        finally:
            self.connections.close()

    def order(self, action: Callable[[], object]) -> None:
        """Do something on the engine's thread between two steps."""
        self._orders.append(action)
        self._signal.send(b"x")

    def drop_connections(self) -> None:
        """Lose all connections, as a broken network does."""

        def drop() -> None:
            for connection in self.connections.all:
                connection.loss = "the test has closed it"

        self.order(drop)

    def stop(self) -> None:
        """End without a word, as a killed process does."""

        def end() -> None:
            self._is_over = True

        self.order(end)
        self._thread.join(HANG_SECONDS)
        self._wakeup.close()
        self._signal.close()


@asynccontextmanager
async def client_of(
    *addresses: Address,
    token: str = TOKEN,
    tls: ssl.SSLContext | None = None,
    vocab_size: int | None = None,
    **options,
) -> AsyncIterator[EngineClient]:
    """Yield a started client of engines elsewhere."""
    access = EngineAccess(token, tls, vocab_size)
    client = EngineClient(CONFIG, remote=FixedEngines(addresses, access), **options)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@pytest.fixture(autouse=True)
def immediate_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect again without delay."""
    monkeypatch.setattr("app.engine_client.restart_policy.INITIAL_BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr("app.engine_client.tcp_engine.INITIAL_RETRY_SECONDS", 0.01)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that must come true."""
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


async def ready(client: EngineClient) -> None:
    await asyncio.wait_for(client.ready(), HANG_SECONDS)


async def test_a_remote_engine_gives_the_texts_of_a_local_one():
    """With moments on this process's clock."""
    engine = ListeningEngine()
    async with client_of(engine.address) as client:
        await ready(client)
        assert client.model is not None and client.model.fingerprint == "fp_ours" and client.members[0].restarts == 0
        now = asyncio.get_running_loop().time()
        results = await asyncio.gather(*(follow(client, request(f"r{i}", 3 + i)) for i in range(12)))
        for i, events in enumerate(results):
            assert tokens_of(events) == text_alone([1, 2], 0, 3 + i)
            moments = [event.monotonic_time for event in events if isinstance(event, StatusEvent)]
            assert all(now <= moment <= asyncio.get_running_loop().time() for moment in moments)
        assert client.members[0].engine.heartbeat_count > 0 and not client.members[0].engine.shares_clock
    engine.stop()


async def test_a_lost_connection_is_made_again_and_no_token_is_computed_twice():
    """The engine goes on meanwhile, and the timelines show the wait."""
    engine = ListeningEngine()
    async with client_of(engine.address) as client:
        await ready(client)
        count = 0

        def on_event(event) -> None:
            nonlocal count
            count += isinstance(event, TokenEvent)
            if count in (60, 200):
                count += 1
                engine.drop_connections()

        results = await asyncio.gather(*(follow(client, request(f"r{i}", 80 + i), on_event) for i in range(4)))
        for i, events in enumerate(results):
            assert tokens_of(events) == text_alone([1, 2], 0, 80 + i)
            assert any(isinstance(event, StatusEvent) and event.cause is WaitReason.RESTART for event in events)
        assert client.members[0].restarts == 2
        assert engine.engine.load().counters.generated_tokens == sum(80 + i for i in range(4))
    engine.stop()


async def test_an_engine_that_was_started_again_continues_from_the_output_so_far():
    """At the same address, as after a kill of its process."""
    engines = [ListeningEngine()]
    async with client_of(engines[0].address) as client:
        await ready(client)
        answers = [asyncio.create_task(follow(client, request(f"r{i}", 100 + i))) for i in range(4)]
        await until(lambda: engines[0].engine.load().counters.generated_tokens > 40)
        await asyncio.to_thread(engines[0].stop)
        await until(lambda: client.state is EngineState.RESTARTING)
        late = asyncio.create_task(follow(client, request("late", 10)))
        engines.append(ListeningEngine(engines[0].address))
        for i, answer in enumerate(answers):
            assert tokens_of(await answer) == text_alone([1, 2], 0, 100 + i)
        assert tokens_of(await late) == text_alone([1, 2], 0, 10)
    engines[1].stop()


async def test_requests_that_are_not_needed_any_more_end_in_the_engine():
    """An abort while the connection is lost reaches the engine with the next one."""
    engine = ListeningEngine()
    async with client_of(engine.address) as client:
        await ready(client)
        aborted = asyncio.create_task(follow(client, request("gone", 12_000)))
        await until(lambda: engine.engine.has_work)
        engine.drop_connections()
        await until(lambda: client.state is EngineState.RESTARTING)
        client.abort("gone")
        await aborted
        await ready(client)
        await until(lambda: not engine.engine.has_work)
        assert engine.engine.load().counters.generated_tokens < 12_000
    engine.stop()


async def test_a_draining_engine_s_requests_move_to_another_one():
    """At once and without a death in their record; the service stays ready."""
    first, second = ListeningEngine(), ListeningEngine()
    async with client_of(first.address, second.address) as client:
        await until(lambda: len(client.members) == 2 and all(member.is_ready for member in client.members))
        answers = [asyncio.create_task(follow(client, request(f"r{i}", 150 + i))) for i in range(4)]
        await until(lambda: first.engine.load().counters.generated_tokens > 20)
        first.order(lambda: first.worker.drain(HANG_SECONDS))
        await until(lambda: client.members[0].phase is EngineState.RESTARTING)
        assert client.state is EngineState.READY
        for i, answer in enumerate(answers):
            assert tokens_of(await answer) == text_alone([1, 2], 0, 150 + i)
        assert second.engine.load().counters.generated_tokens > 0
    first.stop()
    second.stop()


async def test_a_draining_engine_without_another_finishes_its_requests():
    """New ones wait for the next engine."""
    engine = ListeningEngine()
    async with client_of(engine.address) as client:
        await ready(client)
        running = asyncio.create_task(follow(client, request("running", 200)))
        await until(lambda: engine.engine.load().counters.generated_tokens > 10)
        engine.order(lambda: engine.worker.drain(HANG_SECONDS))
        await until(lambda: not client.members[0].is_ready)
        late = asyncio.create_task(follow(client, request("late", 5)))
        assert tokens_of(await running) == text_alone([1, 2], 0, 200)
        assert engine.engine.load().counters.generated_tokens == 200
        await asyncio.to_thread(engine.stop)
        successor = ListeningEngine(engine.address)
        late_events = await late
        assert tokens_of(late_events) == text_alone([1, 2], 0, 5)
        first = next(event for event in late_events if isinstance(event, StatusEvent))
        assert (first.phase, first.cause) == (Phase.QUEUED, WaitReason.RESTART)
    successor.stop()


async def test_a_refused_connection_is_tried_again(caplog: pytest.LogCaptureFixture):
    """The log has the address and the reason."""
    engine = ListeningEngine()
    async with client_of(engine.address, token="another token, of another engine") as client:
        await until(lambda: client.loading.stage == "connect" and client.loading.done > 3)
        assert client.state is EngineState.LOADING
    lines = {record.getMessage() for record in caplog.records if record.name == "carousel.client"}
    assert lines == {f"waiting for engine {engine.address}: it refuses the connection: its token is not the engine's"}
    engine.stop()


async def test_an_engine_with_another_model_is_refused(caplog: pytest.LogCaptureFixture):
    """By the engine, once this process knows the fingerprint, and otherwise by this process."""
    first, other = ListeningEngine(), ListeningEngine(fingerprint="fp_other")
    async with client_of(first.address, other.address) as client:
        await ready(client)
        model = client.model
        refused = next(member for member in client.members if not member.is_ready)
        await until(lambda: refused.loading.stage == "connect" and refused.loading.done > 2)
        assert client.model is model and sum(member.is_ready for member in client.members) == 1
    assert any("fingerprint" in record.getMessage() for record in caplog.records)
    first.stop()
    other.stop()


async def test_an_engine_with_another_vocabulary_than_the_tokenizer_is_refused(caplog: pytest.LogCaptureFixture):
    """Its tokens would be other texts."""
    engine = ListeningEngine()
    async with client_of(engine.address, vocab_size=engine.engine.info.vocab_size + 1) as client:
        await until(lambda: client.loading.done > 2)
    assert "both must be given the same model" in caplog.records[0].getMessage()
    async with client_of(engine.address, vocab_size=engine.engine.info.vocab_size) as client:
        await ready(client)
    engine.stop()


async def test_an_engine_that_never_answers_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    """Its machine accepts connections although its process is stopped."""
    monkeypatch.setattr("app.engine_client.tcp_engine.CONNECT_SECONDS", 0.05)
    silent = socket.create_server(("127.0.0.1", 0))
    address = Address("127.0.0.1", silent.getsockname()[1])
    async with client_of(address) as client:
        await until(lambda: client.loading.done > 2)
    silent.close()
    engine = ListeningEngine(address)
    async with client_of(address) as client:
        await ready(client)
    engine.stop()


async def test_a_silent_engine_is_given_up_by_the_watchdog(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """While its connection is open, as after SIGSTOP. Its requests continue in the other engine."""
    monkeypatch.setattr("app.engine_client.member.ECHO_AFTER_SECONDS", 0.1)
    first, second = ListeningEngine(), ListeningEngine()
    hang = threading.Event()
    async with client_of(first.address, second.address, watchdog=1.0) as client:
        await until(lambda: len(client.members) == 2 and all(member.is_ready for member in client.members))
        answer = asyncio.create_task(follow(client, request("r", 100)))
        engines = (first, second)
        await until(lambda: any(each.engine.load().counters.generated_tokens > 10 for each in engines))
        [busy] = [each for each in engines if each.engine.has_work]
        busy.order(lambda: hang.wait(HANG_SECONDS))
        assert tokens_of(await answer) == text_alone([1, 2], 0, 100)
        assert any("has made no progress for" in record.getMessage() for record in caplog.records)
        hang.set()
        await until(lambda: len(client.members) == 2 and all(member.is_ready for member in client.members))
        await until(lambda: not busy.engine.has_work)
    first.stop()
    second.stop()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with a key and its certificate for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    names = ["-subj", "/CN=engine", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "certificate")]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, "-nodes", "-days", "2", *names, *files], check=True, capture_output=True
    )
    joined = folder / "joined"
    joined.write_text((folder / "key").read_text() + (folder / "certificate").read_text())
    return joined


async def test_connections_are_encrypted_and_engines_proved(certificate: Path, caplog: pytest.LogCaptureFixture):
    """Large frames in both directions included; without TLS, or with another authority, no connection is made."""
    engine = ListeningEngine(tls=engine_tls(str(certificate), None))
    long = msgspec.structs.replace(request("long", 4), prompt=tuple(1 + i % 900 for i in range(16000)))
    async with client_of(engine.address, tls=api_tls(str(certificate))) as client:
        await ready(client)
        results = await asyncio.gather(*(follow(client, request(f"r{i}", 50)) for i in range(8)), follow(client, long))
        for events in results[:-1]:
            assert tokens_of(events) == text_alone([1, 2], 0, 50)
        assert tokens_of(results[-1]) == text_alone(long.prompt, 0, 4)
    for tls, problem in ((None, "closed"), (ssl.create_default_context(), "self-signed certificate")):
        with caplog.at_level(logging.WARNING):
            async with client_of(engine.address, tls=tls) as client:
                await until(lambda client=client: client.loading.done > 1)
        assert problem in caplog.records[-1].getMessage()
    engine.stop()
