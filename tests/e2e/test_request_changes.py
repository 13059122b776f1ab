"""Answers that their clients pause and move to another tier, at a real server, also across deaths of processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.conftest import Server
from tests.e2e.test_adoption import KINDS, events_of
from tests.e2e.test_api_processes import only, processes, service, wait_until  # noqa: F401
from tests.e2e.test_engine_death import restarts
from tests.e2e.test_journal import RESUME, begin_answer, follow, frames, kill, start, whole  # noqa: F401
from tests.e2e.test_remote_engine import SLOW
from tests.limits import HANG_SECONDS

SOME = ("chat", "format", "choices", "logprobs")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Yield a server whose answers take some seconds."""
    running = Server.start(*SLOW, "--served-model-name", "demo", "--store", "none")
    yield running
    running.stop()


def change(server: Server, stream: str, **body: object) -> dict[str, Any]:
    url = f"{server.url}/v1/requests/{stream}"
    return httpx.post(url, json=body, timeout=HANG_SECONDS).raise_for_status().json()


def account(server: Server, stream: str) -> dict[str, Any]:
    return httpx.get(f"{server.url}/v1/requests/{stream}", timeout=HANG_SECONDS).raise_for_status().json()


def suspended(server: Server) -> float:
    """Return the choices that engines hold as paused by their clients."""
    lines = httpx.get(f"{server.url}/metrics", timeout=HANG_SECONDS).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("carousel:num_requests_suspended{"))


def kill_engine(server: Server) -> None:
    [engine] = [
        child
        for child in psutil.Process(server.process.pid).children(recursive=True)
        if "engine.worker" in child.cmdline()
    ]
    os.kill(engine.pid, signal.SIGKILL)


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("kind", SOME)
def test_a_paused_answer_goes_on_where_it_was(server: Server, kind: str, dies: bool):
    """Its reader gets the status, and the events of an answer that nothing disturbs, also if the engine is killed."""
    path, body = KINDS[kind]
    expected = whole(server, path, body)
    with httpx.stream("POST", f"{server.url}{path}", json=body, headers=RESUME, timeout=HANG_SECONDS) as response:
        stream, statuses, read = response.headers["X-Carousel-Stream"], list[str](), list[str]()
        is_paused = False
        for line in response.iter_lines():
            if line.startswith(": carousel {"):
                statuses.append(line)
            elif line.startswith("data: ") and '"ping"' not in line:
                read.append(line[6:])
            if not is_paused and len(read) == 6:
                is_paused = change(server, stream, state="paused")["state"] == "paused"
                wait_until(lambda: suspended(server))
                if dies:
                    before = restarts(server)
                    kill_engine(server)
                    wait_until(lambda before=before: restarts(server) > before and suspended(server))
                assert account(server, stream)["state"] == "paused"
                change(server, stream, state="running")
    assert any('"state":"paused","cause":"client"' in status for status in statuses), statuses
    assert events_of(read) == events_of(expected)


@pytest.mark.parametrize("stop", [kill, Server.stop])
def test_a_paused_answer_is_paused_after_a_restart_of_the_server(start: Callable[..., Server], stop):  # noqa: F811
    """In the class that its client has chosen, also if a reader waited for it when the server was stopped."""
    path, body = KINDS["chat"]
    first = start(*SLOW)
    expected = whole(first, path, body)
    with httpx.stream("POST", f"{first.url}{path}", json=body, headers=RESUME, timeout=HANG_SECONDS) as response:
        stream, reading = response.headers["X-Carousel-Stream"], frames(response)
        begun = [next(reading) for _ in range(5)]
        assert change(first, stream, state="paused", service_tier="flex")["class"] == "batch"
        wait_until(lambda: suspended(first))
        stop(first)
    second = start(*SLOW)
    found = account(second, stream)
    assert (found["state"], found["class"]) == ("paused", "batch")
    wait_until(lambda: suspended(second))
    change(second, stream, state="running")
    after = follow(second, stream, begun[-1][0])
    assert events_of([data for _, data in begun] + after) == events_of(expected)


@pytest.mark.parametrize("kind", SOME)
def test_an_answer_is_changed_at_any_api_process_and_stays_paused_at_another(service: Server, kind: str):  # noqa: F811
    """When the process that has it is killed, the other one adopts it as it is."""
    path, body = KINDS[kind]
    expected = whole(service, path, body)
    before_kill = processes(service, "supervised_api")
    with only(service, 0) as client, client.stream("POST", path, json=body, headers=RESUME) as response:
        stream, reading = response.headers["X-Carousel-Stream"], frames(response)
        begun = [next(reading) for _ in range(5)]
        with only(service, 1) as other:
            changed = other.post(f"/v1/requests/{stream}", json={"state": "paused", "service_tier": "flex"})
            assert changed.json()["state"] == "paused" and changed.json()["class"] == "batch", changed.text
        before_kill[0].kill()
    found = account(service, stream)
    assert (found["state"], found["class"]) == ("paused", "batch")
    change(service, stream, state="running")
    after = follow(service, stream, begun[-1][0])
    assert events_of([data for _, data in begun] + after) == events_of(expected)
    wait_until(lambda: len(processes(service, "supervised_api")) == 2)
