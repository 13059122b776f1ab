"""A request that kills engines, beside requests of two API processes with one engine: only that request ends."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from app.engine_client.in_flight_request import SUSPECT_DEATHS
from tests.conftest import Server
from tests.e2e.poisoned_engine import POISON_SEED
from tests.e2e.test_adoption import events_of
from tests.e2e.test_api_processes import only, wait_until
from tests.e2e.test_journal import BODIES, CHAT, RESUME, frames
from tests.e2e.test_remote_engine import SLOW, Engine
from tests.limits import HANG_SECONDS


class PoisonedEngines:
    """Engines at one address; another one is started when one is killed, until `stop`."""

    def __init__(self, token: Path) -> None:
        self._token = token
        self._is_over = threading.Event()
        self.started = [self._start("127.0.0.1:0")]
        wait_until(lambda: re.search(r"is ready on (\S+)", "\n".join(self.started[0].log)))
        found = re.search(r"is ready on (\S+)", "\n".join(self.started[0].log))
        assert found
        self.address = found[1]
        self._thread = threading.Thread(target=self._restart, daemon=True)
        self._thread.start()

    def _start(self, address: str) -> Engine:
        return Engine(address, self._token, *SLOW, module="tests.e2e.poisoned_engine")

    def _restart(self) -> None:
        while self.started[-1].process.wait() == -signal.SIGKILL and not self._is_over.is_set():
            self.started.append(self._start(self.address))

    def stop(self) -> None:
        self._is_over.set()
        self.started[-1].process.kill()
        self._thread.join(HANG_SECONDS)


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[PoisonedEngines]:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("a token for the tests of trials\n")
    running = PoisonedEngines(token)
    yield running
    running.stop()


@pytest.fixture
def service(engines: PoisonedEngines, tmp_path: Path) -> Iterator[Server]:
    """Yield two API processes with one engine."""
    options = ("--engines", engines.address, "--token-file", str(tmp_path / "token"), "--served-model-name", "demo")
    server = Server.start("--api-processes", "2", *options)
    yield server
    server.stop()


def test_only_the_request_that_kills_engines_ends(engines: PoisonedEngines, service: Server):
    """It kills three engines in all, and answers of both processes continue in the fourth, with the same events."""
    bodies = [BODIES[CHAT] | {"n": 1, "seed": seed, "max_tokens": 300} for seed in (1, 2, 3)]
    with only(service, 0) as first, only(service, 1) as second, ThreadPoolExecutor(len(bodies)) as pool:
        clients = [first, second, second]
        begun = threading.Barrier(1 + len(bodies))

        def answer(client: httpx.Client, body: dict, *, is_disturbed: bool) -> list[str]:
            data: list[str] = []
            with client.stream("POST", CHAT, json=body, headers=RESUME) as response:
                for _, event in frames(response):
                    data.append(event)
                    if is_disturbed and len(data) == 20:
                        begun.wait(HANG_SECONDS)
            return data

        expected = [answer(client, body, is_disturbed=False) for client, body in zip(clients, bodies, strict=True)]
        answers = [
            pool.submit(answer, client, body, is_disturbed=True) for client, body in zip(clients, bodies, strict=True)
        ]
        begun.wait(HANG_SECONDS)
        body = {"messages": [{"role": "user", "content": "Hello"}], "seed": POISON_SEED, "max_tokens": 5}
        error = httpx.post(f"{service.url}{CHAT}", json=body, timeout=HANG_SECONDS)
        assert (error.status_code, error.json()["error"]["code"]) == (500, "engine_died")
        assert "the last time with no other" in error.json()["error"]["message"]
        for number, found in enumerate(answers):
            assert events_of(found.result(HANG_SECONDS)) == events_of(expected[number])
        assert len(engines.started) == 1 + SUSPECT_DEATHS + 1
