"""Replacement of a running server by the next one on the same port: no connection is refused, no answer is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from app.cli.listener import Listener
from tests.conftest import Server

STREAMS = 8
OPTIONS = ("--max-num-seqs", "16", "--max-model-len", "2048", "--drain-timeout", "90")
LONG = {"messages": [{"role": "user", "content": "Tell me a story."}], "stream": True, "ignore_eos": True}
SHORT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def stream(url: str, begun: threading.Barrier) -> int:
    """Return the number of generated tokens of an answer that is complete."""
    body = {**LONG, "max_tokens": 400, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as response:
        lines = (line[6:] for line in response.iter_lines() if line.startswith("data: "))
        next(lines)
        begun.wait(60)
        *_, usage, last = lines
    assert last == "[DONE]"
    return int(json.loads(usage)["usage"]["completion_tokens"])


class Visitors:
    """Clients that open a connection for each of their requests, one after another, until `stop`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopped = threading.Event()
        self.statuses: list[int] = []
        self._thread = threading.Thread(target=self._visit)
        self._thread.start()

    def _visit(self) -> None:
        while not self._stopped.is_set():
            answer = httpx.post(f"{self._url}/v1/chat/completions", json=SHORT, timeout=120)
            self.statuses.append(answer.status_code)

    def stop(self) -> list[int]:
        """Return the statuses of all answers."""
        self._stopped.set()
        self._thread.join(120)
        return self.statuses


def end(server: Server) -> None:
    """Kill a server that a failed test has left, and wait for it."""
    server.process.kill()
    server.process.wait()


def replace_under_load(first: Server, start_second) -> None:
    """Replace `first` while streams run and new connections come; check that nobody notices."""
    begun = threading.Barrier(STREAMS + 1)
    visitors = Visitors(first.url)
    with ThreadPoolExecutor(STREAMS) as clients, httpx.Client(base_url=first.url, timeout=120) as kept:
        answers = [clients.submit(stream, first.url, begun) for _ in range(STREAMS)]
        assert kept.post("/v1/chat/completions", json=SHORT).status_code == 200
        begun.wait(60)
        second = start_second()
        try:
            first.process.send_signal(signal.SIGTERM)
            assert [answer.result() for answer in answers] == [400] * STREAMS
            assert first.process.wait(60) in (0, -signal.SIGTERM)
            assert kept.post("/v1/chat/completions", json=SHORT).status_code == 200
            assert set(visitors.stop()) == {200}
            assert [line for line in (*first.log, *second.log) if line.startswith(("ERROR", "WARNING"))] == []
        finally:
            visitors.stop()
            second.stop()


def test_a_server_with_the_same_port_takes_over_new_connections():
    """With --reuse-port the next server accepts when its model is loaded, and the previous one finishes its answers."""
    first = Server.start(*OPTIONS, "--reuse-port")
    port = first.url.rpartition(":")[2]
    try:
        replace_under_load(first, lambda: Server.start(*OPTIONS, "--reuse-port", "--port", port))
    finally:
        end(first)


def test_a_passed_socket_outlives_its_server():
    """A service manager keeps the socket; connections wait there while no server accepts."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as passed:
        first = Server.start(*OPTIONS, passed=passed)
        try:
            replace_under_load(first, lambda: Server.start(*OPTIONS, passed=passed))
        finally:
            end(first)
        with ThreadPoolExecutor(1) as client:
            url = f"http://127.0.0.1:{passed.getsockname()[1]}"
            waiting = client.submit(httpx.post, f"{url}/v1/chat/completions", json=SHORT, timeout=120)
            third = Server.start(*OPTIONS, passed=passed)
            assert waiting.result().status_code == 200
            third.stop()


def test_a_server_without_a_successor_refuses_new_requests_while_it_drains():
    """With --reuse-port, but alone at its port, it says that it stops."""
    server = Server.start(*OPTIONS, "--reuse-port")
    begun = threading.Barrier(2)
    try:
        with ThreadPoolExecutor(1) as client:
            answer = client.submit(stream, server.url, begun)
            begun.wait(60)
            server.process.send_signal(signal.SIGTERM)
            refused = httpx.post(f"{server.url}/v1/chat/completions", json=SHORT, timeout=60)
            while refused.status_code == 200:  # until the signal is handled
                refused = httpx.post(f"{server.url}/v1/chat/completions", json=SHORT, timeout=60)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_shutdown")
            assert answer.result() == 400
    finally:
        end(server)


def resumable(client: httpx.Client, max_tokens: int, events: int) -> tuple[str, list[str]]:
    """Return the stream of a resumable answer and its first events, after which its reader leaves."""
    headers = {"X-Carousel-Resume": "300"}
    body = {**LONG, "max_tokens": max_tokens, "temperature": 0.0}
    with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        lines = (line[6:] for line in response.iter_lines() if line.startswith("data: "))
        return response.headers["X-Carousel-Stream"], [next(lines) for _ in range(events)]


def replayed(url: str, stream_id: str) -> list[str]:
    """Return the events of a stream from its beginning. The answer is one of a server that keeps it."""
    with httpx.stream("GET", f"{url}/v1/streams/{stream_id}", timeout=120) as response:
        assert response.status_code == 200, response.read()
        return [line[6:] for line in response.iter_lines() if line.startswith("data: ")]


def test_the_next_server_takes_over_the_store_when_the_first_one_ends(tmp_path: Path):
    """Meanwhile it serves, and readers of the first one's answers are told to retry. One without a reader goes on."""
    options = (*OPTIONS, "--kernels", "torch", "--reuse-port", "--store", str(tmp_path / "store.db"))
    first = Server.start(*options)
    url, begun = first.url, threading.Barrier(2)
    with httpx.Client(base_url=url, timeout=120) as client:
        finished, first_events = resumable(client, 5, 8)
    assert first_events[-1] == "[DONE]"
    second = None
    try:
        connected_to_first = httpx.Client(base_url=url, timeout=120, limits=httpx.Limits(keepalive_expiry=60))
        with ThreadPoolExecutor(1) as clients, connected_to_first:
            assert connected_to_first.post("/v1/chat/completions", json=SHORT).status_code == 200
            drained = clients.submit(stream, url, begun)
            begun.wait(60)
            second = Server.start(*options, "--port", url.rpartition(":")[2])
            assert httpx.get(f"{url}/health").json() == {"status": "ready", "store": "waiting"}
            assert httpx.get(f"{url}/v1/streams/{finished}").status_code == 503
            assert httpx.post(f"{url}/v1/chat/completions", json=SHORT, timeout=120).status_code == 200
            with httpx.Client(base_url=url, timeout=120) as client:
                kept, _ = resumable(client, 5, 8)
            unfinished, _ = resumable(connected_to_first, 1500, 3)
            first.process.send_signal(signal.SIGTERM)
            assert drained.result() == 400
            assert first.process.wait(60) in (0, -signal.SIGTERM)
        while "store" in httpx.get(f"{url}/health").json():
            pass
        while (answer := httpx.get(f"{url}/v1/streams/{finished}", timeout=120)).status_code == 503:
            pass
        assert [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")] == first_events
        whole = replayed(url, unfinished)
        assert whole[-1] == "[DONE]" and "error" not in whole[-2]
        assert any(line.endswith(", 1 continue") for line in second.log)
        assert "carousel:store_waiting" in httpx.get(f"{url}/metrics").text
        second.process.kill()
        second.process.wait()
        second = Server.start(*options, "--port", url.rpartition(":")[2])
        assert replayed(url, kept)[-1] == "[DONE]", "what was queued while the store was another server's is in it"
    finally:
        end(first)
        if second is not None:
            second.stop()


@pytest.mark.parametrize("count", ["2", "x"])
def test_several_passed_sockets_are_refused_by_name(count: str):
    """Only one is served."""
    environment = {"LISTEN_FDS": count, "LISTEN_PID": str(os.getpid())}
    with pytest.raises(OSError, match=f"LISTEN_FDS must be 1, one socket at which this server listens, got {count}"):
        Listener.create("127.0.0.1", 0, reuse_port=False, environment=environment)


def test_a_service_manager_learns_of_the_start_and_the_stop(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """As with Type=notify: the server is ready when it serves, and has time to finish answers."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        server = Server.start(*OPTIONS)
        messages = [manager.recv(4096).decode()]
        while not messages[-1].startswith("READY=1"):
            messages.append(manager.recv(4096).decode())
        assert messages[0].startswith("STATUS=Loading: ") and "EXTEND_TIMEOUT_USEC=60000000" in messages[0]
        assert httpx.get(f"{server.url}/health").status_code == 200
        server.stop()
        assert manager.recv(4096).decode().startswith("STOPPING=1\n")
