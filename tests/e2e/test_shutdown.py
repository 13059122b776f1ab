"""Being told to stop."""

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

LONG = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "stream": True,
    "ignore_eos": True,
    "temperature": 0.0,
}


def test_streams_are_finished_or_ended_with_an_error_never_cut():
    """SIGTERM under a short and an endless answer: one completes, the other says why it does not; the exit is clean."""
    server = Server.start("--max-num-seqs", "4", "--max-model-len", "2048")
    children = psutil.Process(server.process.pid).children()
    assert len(children) == 1
    try:
        with httpx.Client(base_url=server.url, timeout=60) as http:
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
        # uvicorn raises the signal again when all is done, so that a supervisor sees what ended it.
        assert server.process.wait(30) in (0, -signal.SIGTERM)
        assert psutil.wait_procs(children, timeout=10)[1] == []
        assert [line for line in server.log if "ERROR" in line] == []
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.parametrize("told", ["both processes", "SIGUSR1", "POST /drain"])
def test_running_answers_are_finished_however_it_is_told(told: str, monkeypatch: pytest.MonkeyPatch):
    """A service manager signals all processes of a service; an operator may send SIGUSR1 or ask over HTTP."""
    monkeypatch.setenv("CAROUSEL_OPERATOR_KEY", "op")
    server = Server.start("--max-num-seqs", "4", "--max-model-len", "2048")
    engine = psutil.Process(server.process.pid).children()
    try:
        asked = {**LONG, "max_tokens": 500, "min_tokens": 500}
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=asked, timeout=60) as response:
            lines = response.iter_lines()
            while not next(lines).startswith("data: "):
                pass
            for process in (*engine, server.process) if told == "both processes" else ():
                process.send_signal(signal.SIGTERM)
            if told == "SIGUSR1":
                server.process.send_signal(signal.SIGUSR1)
            if told == "POST /drain":
                headers = {"Authorization": "Bearer op"}
                answer = httpx.post(f"{server.url}/drain", headers=headers)
                assert (answer.status_code, answer.json()) == (202, {"status": "draining", "in_flight": 1})
                refused = httpx.get(f"{server.url}/readyz")
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
                assert httpx.get(f"{server.url}/livez").status_code == 200
            data = [line[6:] for line in lines if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        status = server.process.wait(30)
        assert status == (-signal.SIGTERM if told == "both processes" else 0)
        assert psutil.wait_procs(engine, timeout=10)[1] == []
        server._follower.join(10)
        assert server.log[-1].startswith("Ready: ")
    finally:
        server.process.kill()
        server.process.wait()


@pytest.fixture
def server():
    """Its longest answer takes seconds: the slowest kernels there are."""
    made = Server.start("--max-num-seqs", "4", "--max-model-len", "2048", "--kernels", "torch")
    yield made
    made.process.kill()
    made.process.wait()


def test_a_websocket_hears_the_end_of_its_answer_and_newcomers_are_told(server: Server):
    """SIGTERM in mid-answer: response.done still comes; meanwhile /health and new requests are answered with 503."""
    address = server.url.replace("http", "ws") + "/v1/realtime"
    # Another answer, longer than what is asked below takes: with the last one the server ends.
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
            kinds.append(json.loads(socket.recv(20))["type"])
        server.process.send_signal(signal.SIGTERM)
        while http.get("/health").status_code == 200:
            time.sleep(0.01)
        assert http.get("/health").json()["error"]["code"] == "server_shutdown"
        assert http.post("/v1/chat/completions", json=LONG).json()["error"]["code"] == "server_shutdown"
        while kinds[-1] != "response.done":
            kinds.append(json.loads(socket.recv(20))["type"])
    server.process.wait(30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_stops_it_before_it_is_ready_is_shown_no_failure(number: signal.Signals):
    """It ends as told, and nothing has failed."""
    command = [sys.executable, "-m", "app", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as starting:
        assert starting.stderr is not None
        told = starting.stderr.readline()
        url = re.search(r"http://\S+", told)[0]
        while True:  # until it hears signals
            with contextlib.suppress(httpx.ConnectError):
                httpx.get(f"{url}/health")
                break
        starting.send_signal(number)
        assert starting.wait(30) == (-signal.SIGTERM if number == signal.SIGTERM else 128 + signal.SIGINT)
        assert "carousel:" not in starting.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_wait_for_answers(server: Server, number: signal.Signals):
    """The stream still ends with its error, long before the time that answers are given, and nobody is shown how."""
    endless = {**LONG, "max_tokens": 2000, "min_tokens": 2000, "service_tier": "flex"}
    with (
        httpx.Client(base_url=server.url, timeout=60) as http,
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
    server.process.wait(30)
    server._follower.join(10)
    assert server.log[2:] == []


def test_a_reader_that_takes_nothing_does_not_hold_up_the_end():
    """Its socket is full, and it has not said that it leaves: the server hangs up, over WebSockets too, and its log has
    nothing to say."""
    server = Server.start("--max-num-seqs", "2", "--max-model-len", "2048")
    try:
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            url = httpx.URL(server.url)
            stuck.connect((url.host, url.port))
            asked = {**LONG, "max_tokens": 1900, "n": 2, "logprobs": True, "top_logprobs": 20}  # six megabytes
            body = json.dumps(asked).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
            stuck.sendall(head + body)
            speaking = flood(url)
            while "vllm:request_success_total{" not in httpx.get(f"{server.url}/metrics").text:
                time.sleep(0.05)
            server.stop()
            speaking.close()
    finally:
        server.process.kill()
        server.process.wait()
    assert [line for line in server.log if "Traceback" in line or "Cancel" in line] == []


def flood(url: httpx.URL) -> socket.socket:
    """A WebSocket whose client has said what takes megabytes to answer, and reads nothing."""
    client = ClientProtocol(parse_uri(f"ws://{url.host}:{url.port}/v1/realtime"))
    client.send_request(client.connect())
    speaking = socket.create_connection((url.host, url.port))
    speaking.sendall(b"".join(client.data_to_send()))
    client.receive_data(speaking.recv(4096))
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * 300_000}]}
    for _ in range(12):
        client.send_text(json.dumps({"type": "conversation.item.create", "item": item}).encode())
    speaking.settimeout(1)
    with contextlib.suppress(TimeoutError):  # it is heard only as far as it can be answered
        speaking.sendall(b"".join(client.data_to_send()))
    return speaking


def test_an_answer_that_nobody_reads_does_not_hold_up_the_end(server: Server):
    """Its reader has left, and the time it asked for runs: the server does not wait for it."""
    endless = {**LONG, "max_tokens": 2000, "min_tokens": 2000}
    with (
        httpx.Client(base_url=server.url, timeout=60) as http,
        http.stream("POST", "/v1/chat/completions", json=endless, headers={"X-Carousel-Resume": "60"}) as response,
    ):
        stream = response.headers["x-carousel-stream"]
        next(response.iter_lines())
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(30)
    assert stream and not any("Traceback" in line for line in server.log)


def test_the_drain_timeout_bounds_the_time_for_running_answers():
    """With 0, an endless answer ends with an error at once."""
    server = Server.start("--kernels", "torch", "--max-model-len", "2048", "--drain-timeout", "0")
    endless = {**LONG, "max_tokens": 2000, "min_tokens": 2000}
    try:
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=endless, timeout=60) as response:
            lines = response.iter_lines()
            while not next(lines).startswith("data: "):
                pass
            server.process.send_signal(signal.SIGUSR1)
            data = [line[6:] for line in lines if line.startswith("data: ")]
        assert json.loads(data[-1])["error"]["code"] == "server_shutdown"
        assert server.process.wait(30) == 0
    finally:
        server.process.kill()
        server.process.wait()


def test_sighup_reads_keys_again_and_keeps_the_old_ones_where_that_fails(tmp_path: Path):
    """Requests that run go on; a broken file costs one line in the log."""
    file = tmp_path / "carousel.toml"

    def write(*keys: str) -> None:
        file.write_text("".join(f'[tenants.{key}]\nkey = "{key}"\n' for key in keys))

    def status(key: str) -> int:
        return httpx.get(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

    def reread() -> str:
        said = len(server.log)
        server.process.send_signal(signal.SIGHUP)
        while len(server.log) == said:
            time.sleep(0.01)
        return server.log[said]

    write("old")
    server = Server.start("--config", str(file), "--kernels", "torch", "--max-model-len", "2048")
    try:
        asked = {**LONG, "max_tokens": 200, "min_tokens": 200}
        headers = {"Authorization": "Bearer old"}
        url = f"{server.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=asked, headers=headers, timeout=60) as response:
            lines = response.iter_lines()
            while not next(lines).startswith("data: "):
                pass
            write("new")
            assert "read again: 1 keys" in reread()
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


def test_nohup_keeps_a_server_from_reading_keys_and_from_stopping():
    """SIGHUP stays ignored."""
    command = f"trap '' HUP; exec {sys.executable} -m app serve --port 0"
    process = subprocess.Popen(["bash", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        server = Server(process)
        server._follower.start()
        assert server._ready.wait(60)
        process.send_signal(signal.SIGHUP)
        assert httpx.get(f"{server.url}/livez").status_code == 200
        assert server.stop() == -signal.SIGTERM
        assert not [line for line in server.log if "SIGHUP" in line]
    finally:
        process.kill()
        process.wait()
