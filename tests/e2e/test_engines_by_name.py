"""`carousel serve --engines dns://NAME:PORT`: real engine processes behind a name come and go."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx

from tests.conftest import Server
from tests.e2e.test_api_processes import wait_until
from tests.e2e.test_remote_engine import SLOW, Engine
from tests.limits import HANG_SECONDS

NAME = "engines.test"


def free_port(hosts: tuple[str, ...]) -> int:
    """Return a port that is free at each address."""
    while True:
        with ExitStack() as stack:
            try:
                first = stack.enter_context(socket.create_server((hosts[0], 0)))
                port: int = first.getsockname()[1]
                for host in hosts[1:]:
                    stack.enter_context(socket.create_server((host, port)))
            except OSError:
                continue
            return port


def texts_of(server: Server, count: int, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
    """Return the texts of several simultaneous requests, and do something while they are computed."""

    def ask(seed: int) -> str:
        body = {"model": "carousel-demo", "prompt": f"{seed} Once", "max_tokens": 200, "ignore_eos": True, "seed": seed}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=HANG_SECONDS).raise_for_status()
        text: str = answer.json()["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(count) as pool:
        texts = [pool.submit(ask, seed) for seed in range(count)]
        meanwhile()
        return [text.result() for text in texts]


def test_engines_behind_a_name_come_and_go_without_loss(tmp_path: Path):
    """A second one is found and shares the work; answers of the first, which is drained, go on in the second."""
    token, hosts = tmp_path / "token", tmp_path / "hosts"
    token.touch(0o600)
    token.write_text("a token for engines behind a name\n")
    addresses = ("127.0.0.1", "127.0.0.2")
    port = free_port(addresses)
    options = ("--engines", f"dns://{NAME}:{port}", "--token-file", str(token))
    engines = [Engine(f"{addresses[0]}:{port}", token, *SLOW, "--drain-seconds", "1")]
    hosts.write_text(addresses[0])
    server = Server.start(*options, command=("tests.named_hosts", NAME, str(hosts), "serve"))

    def states() -> list[str]:
        answer = httpx.get(f"{server.url}/health", timeout=HANG_SECONDS).json()
        return [engine["state"] for engine in answer.get("engines", [{"state": answer["status"]}])]

    def drain_first() -> None:
        running = re.compile(r'^vllm:num_requests_running\{engine="0".* [1-9]', re.MULTILINE)
        wait_until(lambda: running.search(httpx.get(f"{server.url}/metrics").text) is not None)
        engines[0].signal(signal.SIGTERM)
        hosts.write_text(addresses[1])

    try:
        alone = texts_of(server, 6)
        engines.append(Engine(f"{addresses[1]}:{port}", token, *SLOW))
        hosts.write_text("\n".join(addresses))
        wait_until(lambda: states() == ["ready", "ready"])
        assert texts_of(server, 6, drain_first) == alone
        assert engines[0].wait() == 0
        wait_until(lambda: len(states()) == 1)
        assert texts_of(server, 2) == alone[:2]
    finally:
        server.stop()
        for engine in engines:
            engine.process.kill()
            engine.wait()
