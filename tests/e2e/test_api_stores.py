"""`carousel serve --api-processes 2 --store FILE`: answers that outlive one process, or all of them."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.store.location import process_file
from tests.conftest import ROOT, Server
from tests.e2e.test_adoption import KINDS, events_of
from tests.e2e.test_api_processes import OPTIONS, only, processes, wait_until
from tests.e2e.test_journal import MESSAGES, RESPONSES, RESUME, follow, frames, whole
from tests.limits import HANG_SECONDS

STORY = {"input": "Tell me a story about a fox.", "max_output_tokens": 300, "ignore_eos": True, "seed": 5}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Return a function that starts a service with the same files each time."""
    servers: list[Server] = []

    def begin(*options: str) -> Server:
        files = ("--store", str(tmp_path / "s.db"), "--metering", str(tmp_path / "usage.db"))
        servers.append(Server.start(*OPTIONS, *files, *options))
        return servers[-1]

    yield begin
    for server in servers:
        status = server.stop()
        print(*server.log, f"exit status {status}", sep="\n")  # pytest shows it if the test has failed
        server.assert_no_traceback()


def kill_all(service: Server) -> None:
    """Kill the supervisor and all of its processes."""
    supervisor = psutil.Process(service.process.pid)
    everything = [*supervisor.children(recursive=True), supervisor]
    for process in everything:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    service.process.wait(HANG_SECONDS)
    assert psutil.wait_procs(everything[:-1], timeout=HANG_SECONDS)[1] == []


def begin_at(
    service: Server, index: int, path: str, body: dict[str, Any], events: int
) -> tuple[str, list[tuple[str, str]]]:
    """Return the stream of an answer in a process and its first events, and leave it running."""
    with only(service, index) as client, client.stream("POST", path, json=body, headers=RESUME) as response:
        assert response.status_code == 200, response.read()
        reading = frames(response)
        return response.headers["X-Carousel-Stream"], [next(reading) for _ in range(events)]


def wait_until_known(service: Server, path: str) -> httpx.Response:
    """Return the answer to a GET, once the processes have restored what they had."""
    ends_at = time.monotonic() + HANG_SECONDS
    while (answer := httpx.get(f"{service.url}{path}", timeout=HANG_SECONDS)).status_code == 503:
        assert time.monotonic() < ends_at
        time.sleep(0.05)
    assert answer.status_code == 200, answer.text
    return answer


def usage(tmp_path: Path) -> list[tuple[str, str, int]]:
    """Return IDs, outcomes and tokens of the rows in the metering file."""
    with contextlib.closing(sqlite3.connect(tmp_path / "usage.db")) as connection:
        return connection.execute("SELECT request_id, outcome, output_tokens FROM usage").fetchall()


def test_answers_of_all_processes_go_on_after_the_death_of_everything(start, tmp_path: Path):
    """Each reader gets the text of an answer that nothing disturbs, and stored ones are kept, whoever had them."""
    service = start()
    kinds = [*(KINDS[kind] for kind in ("chat", "format", "choices", "logprobs")), (MESSAGES, KINDS["messages"][1])]
    expected = [whole(service, path, body) for path, body in kinds]
    with only(service, 0) as first, only(service, 1) as second:
        stored = [client.post(RESPONSES, json=STORY).json() for client in (first, second)]
        body = STORY | {"background": True, "previous_response_id": stored[1]["id"]}
        running = first.post(RESPONSES, json=body).json()["id"]
    begun = [
        (number, *begin_at(service, index, *kinds[number], len(expected[number]) // 4))
        for number in range(len(kinds))
        for index in (0, 1)
    ]
    kill_all(service)
    assert all(process_file(tmp_path / "s.db", index).is_file() for index in (0, 1))
    again = start()
    for number, stream, before in begun:
        wait_until_known(again, f"/v1/requests/{stream}")
        after = follow(again, stream, before[-1][0])
        assert events_of([data for _, data in before] + after) == events_of(expected[number])
    for index in (0, 1):
        with only(again, index) as client:
            for response in stored:
                assert client.get(f"{RESPONSES}/{response['id']}").json() == response
            wait_until(lambda: client.get(f"{RESPONSES}/{running}").json()["status"] == "incomplete")
            assert client.get(f"{RESPONSES}/{running}").json()["usage"]["output_tokens"] == 300
            after = client.post(RESPONSES, json=STORY | {"previous_response_id": running, "max_output_tokens": 2})
            assert after.status_code == 200, after.text
    ids = [request_id for request_id, _, _ in usage(tmp_path)]
    assert len(ids) == len(set(ids)) and {stream for _, stream, _ in begun} <= set(ids)


@pytest.mark.parametrize("kind", ["chat", "choices", "logprobs"])
def test_an_answer_that_was_adopted_is_the_adopter_s_when_its_process_is_back(start, tmp_path: Path, kind: str):
    """It is whole, both processes answer for it alike, and its usage is counted once."""
    service = start()
    path, body = KINDS[kind]
    expected = whole(service, path, body)
    victim = processes(service, "supervised_api")[0]
    stream, before = begin_at(service, 0, path, body, len(expected) // 4)
    victim.kill()
    after = follow(service, stream, before[-1][0])
    assert events_of([data for _, data in before] + after) == events_of(expected)
    wait_until(lambda: len(processes(service, "supervised_api")) == 2)
    wait_until(lambda: any("continue in other API processes" in line for line in service.log))
    replays = []
    for index in (0, 1):
        wait_until_known(service, f"/v1/requests/{stream}")
        with only(service, index) as client, client.stream("GET", f"/v1/streams/{stream}") as response:
            replays.append([data for _, data in frames(response)])
    assert replays[0] == replays[1] and events_of(replays[0]) == events_of(expected)
    wait_until(lambda: stream in {row[0] for row in usage(tmp_path)})
    [row] = [row for row in usage(tmp_path) if row[0] == stream]
    whole_row = next(row for row in usage(tmp_path) if row[0] != stream)
    assert row[1:] == whole_row[1:]


@pytest.mark.parametrize("kind", ["chat", "choices", "logprobs"])
def test_a_process_that_is_started_again_goes_on_with_its_answers(start, tmp_path: Path, kind: str):
    """Those that no client has asked another process for. Chains of responses stay with the store that has them."""
    service = start()
    path, body = KINDS[kind]
    expected = whole(service, path, body)
    victim = processes(service, "supervised_api")[1]
    with only(service, 1) as client:
        one = client.post(RESPONSES, json=STORY | {"max_output_tokens": 5}).json()["id"]
        two = client.post(RESPONSES, json=STORY | {"previous_response_id": one, "background": True}).json()["id"]
    stream, before = begin_at(service, 1, path, body, len(expected) // 4)
    victim.kill()
    wait_until(lambda: any(" are kept, " in line for line in service.log))
    wait_until_known(service, f"/v1/requests/{stream}")
    after = follow(service, stream, before[-1][0])
    assert events_of([data for _, data in before] + after) == events_of(expected)
    wait_until(lambda: wait_until_known(service, f"{RESPONSES}/{two}").json()["status"] == "incomplete")
    assert wait_until_known(service, f"{RESPONSES}/{two}").json()["previous_response_id"] == one

    def ends() -> list[str]:
        return [row[1] for row in usage(tmp_path) if row[0] in (stream, two.removeprefix("resp_"))]

    wait_until(lambda: len(ends()) >= 2)  # rows are written after the answers
    assert ends() == ["length", "length"]


def test_a_store_that_another_service_has_ends_the_command(start, tmp_path: Path):
    """With status 2 and a line that names the file."""
    start()
    command = [sys.executable, "-m", "app", "serve", "demo", "--port", "0", "--api-processes", "2"]
    command += ["--store", str(tmp_path / "s.db")]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
    assert refused.returncode == 2, refused.stderr
    lines = [line for line in refused.stderr.splitlines() if line.startswith("carousel: ")]
    assert lines and all("another server uses it" in line for line in lines)


def test_one_process_after_two_names_the_file_that_it_does_not_use(start, tmp_path: Path):
    """And two processes have it again."""
    service = start()
    with only(service, 1) as client:
        kept = client.post(RESPONSES, json=STORY | {"max_output_tokens": 5}).json()
    service.stop()
    one = start("--api-processes", "1")
    wait_until(lambda: any("s-api1.db cannot be reached" in line for line in one.log))
    assert httpx.get(f"{one.url}{RESPONSES}/{kept['id']}", timeout=HANG_SECONDS).status_code == 404
    one.stop()
    two = start()
    assert wait_until_known(two, f"{RESPONSES}/{kept['id']}").json() == kept
