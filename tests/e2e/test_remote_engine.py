"""`carousel engine` and `carousel serve --engines`: real processes that find and lose each other."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Server
from tests.e2e.test_engine_death import run_all, stream_text
from tests.limits import HANG_SECONDS

SLOW = ("--max-num-seqs", "4", "--kernels", "torch")  # so that answers take some seconds


class Engine:
    """A real `carousel engine` process. module: that has the command."""

    def __init__(self, address: str, token: Path, *options: str, module: str = "app") -> None:
        arguments = [module, "engine", "demo", "--listen", address, "--token-file", str(token), *options]
        self.log: list[str] = []
        self.process = subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def _follow(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.log.append(line.rstrip())

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.process.pid, number)

    def wait(self) -> int:
        """Wait for its end and return its exit status."""
        status = self.process.wait(HANG_SECONDS)
        self._follower.join(HANG_SECONDS)
        return status


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("token") / "token"
    file.touch(0o600)
    file.write_text("a token for the tests of remote engines\n")
    return file


@pytest.fixture(scope="module")
def address() -> str:
    """Return an address that is free."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture(scope="module")
def expected() -> list[str | list[str]]:
    """Return the texts of a server with an engine process of its own."""
    local = Server.start(*SLOW)
    try:
        return run_all(local, lambda: None)
    finally:
        local.stop()


class Engines:
    """Engines at one address, one after the other."""

    def __init__(self, address: str, token: Path) -> None:
        self.address = address
        self.token = token
        self._started: list[Engine] = []

    def start(self) -> Engine:
        """Start the next one."""
        self._started.append(Engine(self.address, self.token, *SLOW, "--drain-seconds", str(HANG_SECONDS)))
        return self._started[-1]

    @property
    def last(self) -> Engine:
        """Return the one that was started last."""
        return self._started[-1]

    def kill(self) -> None:
        """Kill those that still run."""
        for engine in self._started:
            if engine.process.poll() is None:
                engine.process.kill()
            engine.wait()


@pytest.fixture
def engines(address: str, token: Path) -> Iterator[Engines]:
    found = Engines(address, token)
    yield found
    found.kill()


@pytest.fixture
def server(engines: Engines) -> Iterator[Server]:
    """Yield a server that waited for an engine."""
    engines.start()
    options = ("--engines", engines.address, "--token-file", str(engines.token), "--watchdog-timeout", "5")
    running = Server.start(*options)
    yield running
    running.stop()


def wait_for_line(log: list[str], text: str) -> None:
    """Wait until a line of a log has a text."""
    ends_at = time.monotonic() + HANG_SECONDS
    while not any(text in line for line in log):
        assert time.monotonic() < ends_at, "\n".join(log)
        time.sleep(0.01)


def disturbed_texts(server: Server, disturb: Callable[[], None]) -> list[str | list[str]]:
    """Return the texts of all kinds of requests, in the middle of which something happens once."""
    threads: list[threading.Thread] = []
    chunks = 0

    def on_chunk() -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 40:
            threads.append(threading.Thread(target=disturb))
            threads[0].start()

    texts = run_all(server, on_chunk)
    threads[0].join(HANG_SECONDS)
    return texts


def test_an_engine_elsewhere_gives_the_texts_of_a_local_one(
    server: Server, engines: Engines, expected: list[str | list[str]]
):
    """Streams, whole answers, WebSockets, formats and tools; the server has started no engine itself."""
    assert run_all(server, lambda: None) == expected
    ready = f"Carousel engine is ready on {engines.address}"
    assert any(line.startswith(ready) for line in engines.last.log)
    with pytest.raises(ValueError, match="unpack"):
        _ = server.engine


def test_no_text_is_lost_when_an_engine_is_killed_and_another_one_started(
    server: Server, engines: Engines, expected: list[str | list[str]]
):
    """At the same address."""

    def replace() -> None:
        engines.last.signal(signal.SIGKILL)
        assert engines.last.wait() == -signal.SIGKILL
        engines.start()

    assert disturbed_texts(server, replace) == expected
    waiting = f"waiting for engine {re.escape(engines.address)}: .*refused"
    assert any(re.search(waiting, line) for line in server.log)


def test_an_engine_that_stops_and_goes_on_loses_no_text(
    server: Server, engines: Engines, expected: list[str | list[str]]
):
    """The watchdog gives it up while it is stopped. Its requests are orphans until the server is back."""

    def suspend() -> None:
        engines.last.signal(signal.SIGSTOP)
        try:
            wait_for_line(server.log, "has made no progress for")
        finally:
            engines.last.signal(signal.SIGCONT)

    assert disturbed_texts(server, suspend) == expected
    assert engines.last.process.poll() is None


def test_a_signal_drains_an_engine(server: Server, engines: Engines):
    """Running answers end whole, the process ends with status 0, and new requests wait for the next engine."""
    undisturbed = stream_text(server, lambda: None)
    chunks = 0
    drained = engines.last

    def on_chunk() -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 20:
            drained.signal(signal.SIGTERM)

    assert stream_text(server, on_chunk) == undisturbed
    assert drained.wait() == 0
    engines.start()
    assert stream_text(server, lambda: None) == undisturbed


def test_a_second_signal_ends_an_engine_at_once(server: Server, engines: Engines):
    """The answer continues in the next one."""
    undisturbed = stream_text(server, lambda: None)
    chunks = 0
    ended = engines.last

    def on_chunk() -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 2:
            ended.signal(signal.SIGTERM)
            wait_for_line(ended.log, "the engine ends with its requests")
            ended.signal(signal.SIGTERM)
            assert ended.wait() == -signal.SIGTERM
            engines.start()

    assert stream_text(server, on_chunk) == undisturbed
