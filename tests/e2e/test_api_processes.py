"""`carousel serve --api-processes 2`: processes that share a port and an engine, and are started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import httpx
import psutil
import pytest

from tests.conftest import ROOT, Server
from tests.e2e.test_adoption import KINDS, events_of
from tests.e2e.test_journal import BODIES, CHAT, RESPONSES, RESUME, begin_answer, follow, whole
from tests.e2e.test_remote_engine import SLOW, wait_for_line
from tests.limits import HANG_SECONDS

OPTIONS = ("--api-processes", "2", "--served-model-name", "demo", *SLOW)
BODY = BODIES[CHAT] | {"n": 1}


@pytest.fixture(scope="module")
def service() -> Iterator[Server]:
    """Yield a service of two API processes and an engine."""
    server = Server.start(*OPTIONS)
    yield server
    assert server.stop() == -signal.SIGTERM
    server.assert_no_traceback()


def processes(service: Server, module: str) -> list[psutil.Process]:
    """Return the child processes that run a module, in order of their start."""
    found: list[psutil.Process] = []
    for child in psutil.Process(service.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # it was killed, and its parent has not noticed that yet
            if f"app.cli.{module}" in child.cmdline():
                found.append(child)
    return found


@contextmanager
def only(service: Server, index: int) -> Iterator[httpx.Client]:
    """Yield a client whose connection is at one of the two API processes."""
    other = processes(service, "supervised_api")[1 - index]
    with httpx.Client(base_url=service.url, timeout=HANG_SECONDS) as client:
        other.suspend()
        try:
            assert client.get("/livez").status_code == 200
        finally:
            other.resume()
        yield client


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    ends_at = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def test_each_process_answers_for_the_streams_of_the_others(service: Server):
    """Their timelines, their events, and their end."""
    with only(service, 0) as first, only(service, 1) as second:
        with first.stream("POST", CHAT, json=BODY | {"max_tokens": 1500}, headers=RESUME) as response:
            stream = response.headers["X-Carousel-Stream"]
            lines = response.iter_lines()
            for _ in range(10):
                next(lines)
            assert second.get(f"/v1/requests/{stream}").json()["state"] == "running"
            with second.stream("GET", f"/v1/streams/{stream}") as copy:
                assert next(copy.iter_lines())
        assert second.delete(f"/v1/streams/{stream}").status_code == 204
        timeline = first.get(f"/v1/requests/{stream}").json()
        assert timeline == second.get(f"/v1/requests/{stream}").json() and timeline["state"] == "ended"
        unknown = second.get("/v1/streams/000000000000000000000000")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "stream_not_found")


def test_each_process_continues_what_the_others_have_stored(service: Server):
    """Responses and conversations."""
    with only(service, 0) as first, only(service, 1) as second:
        body = {"input": "Say one word.", "max_output_tokens": 3}
        response = first.post(RESPONSES, json=body).json()["id"]
        assert second.get(f"{RESPONSES}/{response}").json()["id"] == response
        after = second.post(RESPONSES, json=body | {"previous_response_id": response})
        assert after.status_code == 200 and after.json()["previous_response_id"] == response
        conversation = second.post("/v1/conversations", json={}).json()["id"]
        assert first.post(RESPONSES, json=body | {"conversation": conversation}).status_code == 200
        items = second.get(f"/v1/conversations/{conversation}/items").json()["data"]
        assert items == first.get(f"/v1/conversations/{conversation}/items").json()["data"] and len(items) == 2
        missing = first.post(RESPONSES, json=body | {"previous_response_id": "resp_none"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (400, "previous_response_not_found")
        assert second.delete(f"{RESPONSES}/{response}").json()["deleted"] is True
        assert first.get(f"{RESPONSES}/{response}").status_code == 404


def test_an_idempotency_key_holds_for_all_processes(service: Server):
    with only(service, 0) as first, only(service, 1) as second:
        for number in range(4):
            headers = {"Idempotency-Key": f"key {number}"}
            body = BODY | {"stream": False, "max_tokens": 3}
            answers = [client.post(CHAT, json=body, headers=headers) for client in (first, second, first)]
            assert len({answer.headers["X-Carousel-Stream"] for answer in answers}) == 1
            assert [answer.headers.get("Idempotent-Replayed") for answer in answers] == [None, "true", "true"]
            assert second.post(CHAT, json=body | {"seed": 1}, headers=headers).status_code == 409


def test_one_scrape_has_the_metrics_of_all_processes(service: Server):
    with only(service, 0) as first, only(service, 1) as second:
        for client in (first, second):
            assert client.post(CHAT, json=BODY | {"stream": False, "max_tokens": 3}).status_code == 200
        text = second.get("/metrics").text
    for number in (0, 1):
        assert f'vllm:prompt_tokens_total{{api_process="{number}"' in text
    assert text.count("# TYPE vllm:prompt_tokens_total") == 1


@pytest.mark.parametrize("kind", ["chat", "format", "choices", "logprobs"])
def test_an_answer_continues_when_its_process_is_killed(service: Server, kind: str):
    """At any process; the killed one is started again."""
    path, body = KINDS[kind]
    expected = whole(service, path, body)
    before_kill = processes(service, "supervised_api")
    with only(service, 0) as client, client.stream("POST", path, json=body, headers=RESUME) as response:
        stream, cursor, kept = response.headers["X-Carousel-Stream"], "", list[str]()
        for line in response.iter_lines():
            if line.startswith("id: "):
                cursor = line[4:]
            elif line.startswith("data: "):
                kept.append(line[6:])
                if len(kept) == len(expected) // 3:
                    break
        before_kill[0].kill()
    after = follow(service, stream, cursor)
    assert events_of(kept + after) == events_of(expected)
    wait_until(lambda: len(processes(service, "supervised_api")) == 2)
    wait_for_line(service.log, "API process 0 ended by SIGKILL; another one is started")
    wait_until(lambda: httpx.get(f"{service.url}/health", timeout=HANG_SECONDS).status_code == 200)


def test_answers_continue_when_the_engine_is_killed(service: Server):
    """In the next one, which is started at the same place."""
    expected = whole(service, CHAT, BODY)
    [engine] = processes(service, "supervised_engine")
    stream, before = begin_answer(service, CHAT, BODY, len(expected) // 3)
    engine.kill()
    after = follow(service, stream, before[-1][0])
    assert events_of([data for _, data in before] + after) == events_of(expected)
    wait_for_line(service.log, "engine 0 ended by SIGKILL; another one is started")


@contextmanager
def no_descriptors(service: Server) -> Iterator[None]:
    """Leave a supervisor no file descriptor for another process meanwhile."""
    supervisor = psutil.Process(service.process.pid)
    limits = supervisor.rlimit(psutil.RLIMIT_NOFILE)
    supervisor.rlimit(psutil.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        supervisor.rlimit(psutil.RLIMIT_NOFILE, limits)


NO_DESCRIPTORS = "could not be started: [Errno 24] Too many open files; another one is started"


def test_answers_wait_while_no_engine_can_be_started(service: Server):
    """The supervisor tries again, and they go on."""
    expected = whole(service, CHAT, BODY)
    [engine] = processes(service, "supervised_engine")
    stream, before = begin_answer(service, CHAT, BODY, len(expected) // 3)
    with no_descriptors(service):
        engine.kill()
        wait_for_line(service.log, f"engine 0 {NO_DESCRIPTORS}")
    after = follow(service, stream, before[-1][0])
    assert events_of([data for _, data in before] + after) == events_of(expected)


def test_an_api_process_is_started_once_it_can_be(service: Server):
    """Meanwhile the other one serves."""
    victim = processes(service, "supervised_api")[0]
    with no_descriptors(service):
        victim.kill()
        wait_until(lambda: any("API process" in line and NO_DESCRIPTORS in line for line in service.log))
        assert httpx.get(f"{service.url}/livez", timeout=HANG_SECONDS).status_code == 200
    wait_until(lambda: len(processes(service, "supervised_api")) == 2)
    wait_until(lambda: httpx.get(f"{service.url}/health", timeout=HANG_SECONDS).status_code == 200)


def test_a_signal_lets_answers_finish_and_leaves_no_process():
    """New requests are refused meanwhile."""
    server = Server.start(*OPTIONS)
    children = psutil.Process(server.process.pid).children(recursive=True)
    with (
        only(server, 0) as client,
        only(server, 1) as other,
        client.stream("POST", CHAT, json=BODY, headers=RESUME) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: other.post(CHAT, json=BODY | {"stream": False, "max_tokens": 1}).status_code == 503)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert server.process.wait(HANG_SECONDS) == -signal.SIGTERM
    server.stop()
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


def test_each_process_finds_the_warm_requests_of_the_others(service: Server):
    """A page asks any of them."""
    body = BODY | {"max_tokens": 5, "stream": False, "messages": [{"role": "user", "content": "Tell me more. " * 60}]}
    with only(service, 0) as first, only(service, 1) as second:
        names = [client.post(CHAT, json=body, headers=RESUME).json()["id"] for client in (first, second)]
        for client in (first, second):
            found = client.post("/v1/page/warm", json={"requests": [*names, "unknown"]}).json()["requests"]
            assert found.keys() == set(names)
            assert all(each["cached_tokens"] > 0 < each["first_token_ms"] for each in found.values())


def test_a_killed_supervisor_leaves_no_process():
    server = Server.start(*OPTIONS)
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert len(children) >= 3
    server.process.kill()
    server.process.wait(HANG_SECONDS)
    _, alive = psutil.wait_procs(children, timeout=HANG_SECONDS)
    assert alive == []
    server.stop()


def test_a_drained_process_ends_the_service():
    """As with one process; its exit status is 0."""
    server = Server.start(*OPTIONS, "--operator-key", "operator-0123456789")
    headers = {"Authorization": "Bearer operator-0123456789"}
    assert httpx.post(f"{server.url}/drain", headers=headers, timeout=HANG_SECONDS).status_code in (200, 202, 204)
    assert server.process.wait(HANG_SECONDS) == 0
    server.stop()


def test_a_model_that_cannot_be_loaded_ends_the_command(tmp_path):
    """With its reason, once."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Unknown"], "vocab_size": 10}))
    command = [sys.executable, "-m", "app", "serve", "demo", "--port", "0", "--api-processes", "2"]
    command += ["--num-pages", "1", "--page-size", "16", "--max-model-len", "1000000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 1, done.stderr
    assert sum(line.startswith("carousel: ") for line in done.stderr.splitlines()) == 1, done.stderr


NO_PROCESSES = """
import asyncio, errno, os, runpy, sys
async def fail(*arguments, **options):
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
asyncio.create_subprocess_exec = fail
sys.argv = ["carousel", *sys.argv[1:]]
runpy.run_module("app", run_name="__main__")
"""


def test_a_service_that_can_start_no_process_ends_with_its_reason():
    """Once, and at once."""
    command = [sys.executable, "-c", NO_PROCESSES, "serve", "demo", "--port", "0", *OPTIONS, "--store", "none"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 1, done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("carousel: ")]
    assert line.startswith("carousel: stopping with status 1, because ") and line.endswith(
        " could not be started: [Errno 11] Resource temporarily unavailable"
    )


COLLECTING = """
import gc, runpy, sys, threading, time
def collect():
    while True:
        gc.collect()
        time.sleep(0.02)
threading.Thread(target=collect, daemon=True).start()
sys.argv = ["carousel", *sys.argv[1:]]
runpy.run_module("app", run_name="__main__")
"""


def test_collections_of_garbage_end_no_task_of_a_supervisor() -> None:
    """The reports of its children are read until they end."""
    command = [sys.executable, "-c", COLLECTING, "serve", "demo", "--port", "0", *OPTIONS, "--store", "none"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as service:
        assert service.stdout is not None
        lines = []
        for line in service.stdout:
            lines.append(line)
            if line.startswith("Ready"):
                service.send_signal(signal.SIGTERM)
    assert any(line.startswith("Ready") for line in lines), lines
    assert not any("destroyed" in line for line in lines), lines
