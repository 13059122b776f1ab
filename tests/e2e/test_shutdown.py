"""Shutdown of a server."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from websockets.client import ClientProtocol
from websockets.sync.client import connect
from websockets.uri import parse_uri

from tests.conftest import ROOT, Server
from tests.limits import HANG_SECONDS

LONG = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "stream": True,
    "ignore_eos": True,
    "temperature": 0.0,
}


def test_streams_complete_or_end_with_an_error():
    """On SIGTERM a short answer completes, an endless one ends with an error, and the exit is clean."""
    server = Server.start("--max-num-seqs", "4", "--max-model-len", "2048")
    children = psutil.Process(server.process.pid).children()
    assert len(children) == 2, "an engine, and the process that checks grammars"
    try:
        with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http:
            endless = {**LONG, "max_tokens": 2000, "min_tokens": 2000}
            short = {**LONG, "max_tokens": 60}
            with (
                http.stream("POST", "/v1/chat/completions", json=endless) as first,
                http.stream("POST", "/v1/chat/completions", json=short) as second,
                http.stream("GET", "/v1/engine/events") as watching,
            ):
                lines = first.iter_lines()
                while not next(lines).startswith("data: "):
                    pass
                server.process.send_signal(signal.SIGTERM)
                data = [line[6:] for line in second.iter_lines() if line.startswith("data: ")]
                assert data[-1] == "[DONE]"
                data = [line[6:] for line in lines if line.startswith("data: ")]
                watching.read()  # its body has an end too
        last = data[-1]
        assert last == "[DONE]" or json.loads(last)["error"]["code"] == "server_shutdown"
        # uvicorn raises the signal again at the end, so that a supervisor sees its cause.
        assert server.process.wait(HANG_SECONDS) in (0, -signal.SIGTERM)
        assert psutil.wait_procs(children, timeout=HANG_SECONDS)[1] == []
        assert [line for line in server.log if "ERROR" in line] == []
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.parametrize("trigger", ["all processes", "SIGUSR1", "POST /drain"])
def test_running_answers_are_finished_for_any_shutdown_trigger(trigger: str, monkeypatch: pytest.MonkeyPatch):
    """A service manager signals all processes of a service, and an operator may send SIGUSR1 or a request over HTTP."""
    monkeypatch.setenv("CAROUSEL_OPERATOR_KEY", "op")
    server = Server.start("--max-num-seqs", "4", "--max-model-len", "2048")
    children = psutil.Process(server.process.pid).children()
    try:
        body = {**LONG, "max_tokens": 500, "min_tokens": 500}
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=HANG_SECONDS) as response:
            lines = response.iter_lines()
            while not next(lines).startswith("data: "):
                pass
            for process in (*children, server.process) if trigger == "all processes" else ():
                process.send_signal(signal.SIGTERM)
            if trigger == "SIGUSR1":
                server.process.send_signal(signal.SIGUSR1)
            if trigger == "POST /drain":
                headers = {"Authorization": "Bearer op"}
                answer = httpx.post(f"{server.url}/drain", headers=headers)
                assert (answer.status_code, answer.json()) == (202, {"status": "draining", "in_flight": 1})
                refused = httpx.get(f"{server.url}/readyz")
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
                assert httpx.get(f"{server.url}/livez").status_code == 200
            data = [line[6:] for line in lines if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        status = server.process.wait(HANG_SECONDS)
        assert status == (-signal.SIGTERM if trigger == "all processes" else 0)
        assert psutil.wait_procs(children, timeout=HANG_SECONDS)[1] == []
        server._follower.join(HANG_SECONDS)
        assert server.log[-1].startswith("Ready: ")
    finally:
        server.process.kill()
        server.process.wait()


@pytest.fixture
def server():
    """Yield a server whose longest answer takes seconds, with the slowest kernels."""
    started = Server.start("--max-num-seqs", "4", "--max-model-len", "2048", "--kernels", "torch")
    yield started
    started.process.kill()
    started.process.wait()


def test_a_websocket_gets_the_end_of_its_answer_and_new_requests_are_refused(server: Server):
    """response.done still arrives after SIGTERM, while /health and new requests get 503."""
    address = server.url.replace("http", "ws") + "/v1/realtime"
    # Another answer, which takes longer than the requests below: the server ends with its last answer.
    longer = {**LONG, "max_tokens": 2000, "min_tokens": 2000}
    with (
        connect(address) as socket,
        httpx.Client(base_url=server.url) as http,
        http.stream("POST", "/v1/chat/completions", json=longer) as other,
    ):
        assert other.status_code == 200
        content = [{"type": "input_text", "text": "Tell me a story about a fox."}]
        item = {"type": "message", "role": "user", "content": content}
        socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        socket.send(json.dumps({"type": "response.create"}))
        kinds = []
        while "response.output_text.delta" not in kinds:
            kinds.append(json.loads(socket.recv(HANG_SECONDS))["type"])
        server.process.send_signal(signal.SIGTERM)
        while http.get("/health").status_code == 200:
            time.sleep(0.01)
        assert http.get("/health").json()["error"]["code"] == "server_shutdown"
        assert http.post("/v1/chat/completions", json=LONG).json()["error"]["code"] == "server_shutdown"
        while kinds[-1] != "response.done":
            kinds.append(json.loads(socket.recv(HANG_SECONDS))["type"])
    server.process.wait(HANG_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_server_is_ready_reports_no_failure(number: signal.Signals):
    """The exit status is that of the signal, and nothing is reported as failed."""
    command = [sys.executable, "-m", "app", "serve", "demo", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as starting:
        assert starting.stderr is not None
        line = starting.stderr.readline()
        url = re.search(r"http://\S+", line)[0]
        while True:  # until it handles signals
            with contextlib.suppress(httpx.ConnectError):
                httpx.get(f"{url}/health")
                break
        starting.send_signal(number)
        assert starting.wait(HANG_SECONDS) == (-signal.SIGTERM if number == signal.SIGTERM else 128 + signal.SIGINT)
        assert "carousel:" not in starting.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_wait_for_answers(server: Server, number: signal.Signals):
    """The stream ends with its error long before the drain timeout, and the log has no traceback."""
    endless = {**LONG, "max_tokens": 2000, "min_tokens": 2000, "service_tier": "flex"}
    with (
        httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http,
        http.stream("POST", "/v1/chat/completions", json=endless) as response,
    ):
        lines = response.iter_lines()
        while not next(lines).startswith("data: "):
            pass
        server.process.send_signal(number)
        while http.get("/health").status_code == 200:
            time.sleep(0.01)
        server.process.send_signal(number)
        data = [line[6:] for line in lines if line.startswith("data: ")]
    assert json.loads(data[-1])["error"]["code"] == "server_shutdown"
    server.process.wait(HANG_SECONDS)
    server._follower.join(HANG_SECONDS)
    expected = ("Carousel is starting", "INFO carousel.engine: No SHA-256 digests", "Ready: ")
    assert [line for line in server.log if not line.startswith(expected)] == []


def test_a_client_that_reads_nothing_does_not_delay_the_shutdown():
    """Its socket is full and stays open; the server closes the connection, also of WebSockets, and logs nothing."""
    server = Server.start("--max-num-seqs", "2", "--max-model-len", "2048")
    try:
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            url = httpx.URL(server.url)
            stuck.connect((url.host, url.port))
            fields = {**LONG, "max_tokens": 1900, "n": 2, "logprobs": True, "top_logprobs": 20}  # six megabytes
            body = json.dumps(fields).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
            stuck.sendall(head + body)
            flooding = flood(url)
            while "vllm:request_success_total{" not in httpx.get(f"{server.url}/metrics").text:
                time.sleep(0.05)
            server.stop()
            flooding.close()
    finally:
        server.process.kill()
        server.process.wait()
    assert [line for line in server.log if "Traceback" in line or "Cancel" in line] == []


def flood(url: httpx.URL) -> socket.socket:
    """Return a WebSocket whose client has sent events with megabytes of responses, and reads nothing."""
    client = ClientProtocol(parse_uri(f"ws://{url.host}:{url.port}/v1/realtime"))
    client.send_request(client.connect())
    flooding = socket.create_connection((url.host, url.port))
    flooding.sendall(b"".join(client.data_to_send()))
    client.receive_data(flooding.recv(4096))
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * 300_000}]}
    for _ in range(12):
        client.send_text(json.dumps({"type": "conversation.item.create", "item": item}).encode())
    flooding.settimeout(1)
    with contextlib.suppress(TimeoutError):  # the server reads only as long as it can respond
        flooding.sendall(b"".join(client.data_to_send()))
    return flooding


def test_an_answer_without_a_reader_does_not_delay_the_shutdown(server: Server):
    """Its reader has disconnected and the grace time runs, but the server does not wait for it."""
    endless = {**LONG, "max_tokens": 2000, "min_tokens": 2000}
    with (
        httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http,
        http.stream("POST", "/v1/chat/completions", json=endless, headers={"X-Carousel-Resume": "60"}) as response,
    ):
        stream = response.headers["x-carousel-stream"]
        next(response.iter_lines())
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(HANG_SECONDS)
    assert stream
    server.assert_no_traceback()


def test_the_drain_timeout_bounds_the_time_for_running_answers():
    """With 0, an endless answer ends with an error at once."""
    server = Server.start("--kernels", "torch", "--max-model-len", "2048", "--drain-timeout", "0")
    endless = {**LONG, "max_tokens": 2000, "min_tokens": 2000}
    try:
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=endless, timeout=HANG_SECONDS) as response:
            lines = response.iter_lines()
            while not next(lines).startswith("data: "):
                pass
            server.process.send_signal(signal.SIGUSR1)
            data = [line[6:] for line in lines if line.startswith("data: ")]
        assert json.loads(data[-1])["error"]["code"] == "server_shutdown"
        assert server.process.wait(HANG_SECONDS) == 0
    finally:
        server.process.kill()
        server.process.wait()


def test_sighup_reloads_keys_and_keeps_the_old_ones_on_failure(tmp_path: Path):
    """Running requests continue, and an invalid file costs one line in the log."""
    file = tmp_path / "carousel.toml"

    def write(*keys: str) -> None:
        file.write_text("".join(f'[tenants.{key}]\nkey = "{key}"\n' for key in keys))

    def status(key: str) -> int:
        return httpx.get(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

    def reread() -> str:
        length = len(server.log)
        server.process.send_signal(signal.SIGHUP)
        while len(server.log) == length:
            time.sleep(0.01)
        return server.log[length]

    write("old")
    server = Server.start("--config", str(file), "--kernels", "torch", "--max-model-len", "2048")
    try:
        body = {**LONG, "max_tokens": 200, "min_tokens": 200}
        headers = {"Authorization": "Bearer old"}
        url = f"{server.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=HANG_SECONDS) as response:
            lines = response.iter_lines()
            while not next(lines).startswith("data: "):
                pass
            write("new")
            assert reread().rstrip().endswith("were reloaded: 1 key")
            assert (status("old"), status("new")) == (401, 200)
            data = [line[6:] for line in lines if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        file.write_text("[tenants.broken")
        assert str(file) in reread()
        write()
        assert "no key is left" in reread()
        assert (status("old"), status("new")) == (401, 200)
        file.unlink()
        assert str(file) in reread()
        assert status("new") == 200
    finally:
        server.stop()


def test_under_nohup_sighup_neither_reloads_keys_nor_stops_the_server():
    """SIGHUP stays ignored."""
    command = f"trap '' HUP; exec {sys.executable} -m app serve demo --port 0"
    process = subprocess.Popen(["bash", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        server = Server(process)
        server._follower.start()
        assert server._ready.wait(HANG_SECONDS)
        process.send_signal(signal.SIGHUP)
        assert httpx.get(f"{server.url}/livez").status_code == 200
        assert server.stop() == -signal.SIGTERM
        assert not [line for line in server.log if "SIGHUP" in line]
    finally:
        process.kill()
        process.wait()
