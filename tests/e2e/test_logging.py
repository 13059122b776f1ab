"""Log output of a server, which never waits for its standard error."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest
from websockets.sync.client import connect

from tests.conftest import ROOT, Server
from tests.limits import HANG_SECONDS

BODY = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}


def test_a_standard_error_that_is_not_read_does_not_block_the_server():
    """Requests are answered at debug level with a full pipe, and SIGTERM ends the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "app", "serve", "demo", "--port", str(port), "--log-level", "debug"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, pipesize=4096)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG_SECONDS) as http:
            while True:
                try:
                    if http.get("/health").status_code == 200:
                        break
                except httpx.ConnectError:
                    assert process.poll() is None
                time.sleep(0.05)
            metrics = ""
            while "carousel:log_lines_dropped_total 0.0" in metrics or not metrics:
                for _ in range(200):  # each writes a line, and all of them together exceed the queue
                    assert http.get("/v1/models/" + "x" * 200).status_code == 404
                metrics = http.get("/metrics").text
            assert http.post("/v1/chat/completions", json=BODY).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_SECONDS) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_a_debug_log_has_neither_keys_nor_the_text_of_conversations():
    """This holds over HTTP and WebSocket."""
    server = Server.start("--log-level", "debug", "--api-key", "sk-hidden")
    headers = {"Authorization": "Bearer sk-hidden"}
    try:
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=BODY, headers=headers, timeout=HANG_SECONDS)
        assert answer.status_code == 200
        with connect(server.url.replace("http", "ws") + "/v1/realtime", additional_headers=headers) as socket_:
            content = [{"type": "input_text", "text": "a private matter"}]
            item = {"type": "message", "role": "user", "content": content}
            socket_.send(json.dumps({"type": "conversation.item.create", "item": item}))
            while "a private matter" not in socket_.recv(HANG_SECONDS):  # the server's event about the new item
                pass
    finally:
        server.stop()
    text = "\n".join(server.log + server.access)
    assert "sk-hidden" not in text and "a private matter" not in text


def test_every_log_line_about_a_request_has_the_client_s_id():
    """These are the access line with its bytes, the engine's preemption, and the API's report of the engine crash."""
    server = Server.start("--max-num-seqs", "1", "--kernels", "torch", "--log-level", "debug")
    body = {**BODY, "ignore_eos": True, "max_tokens": 300, "service_tier": "flex", "stream": True}
    try:
        with (
            httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http,
            httpx.Client(base_url=server.url) as other,
        ):
            headers = {"X-Request-Id": "bulk%d 7"}
            with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                chunks = answer.iter_raw()
                received = [next(chunks), next(chunks), next(chunks)]
                interactive = {**BODY, "service_tier": "priority"}
                other.post(
                    "/v1/chat/completions", json=interactive, headers={"X-Request-Id": "person"}, timeout=HANG_SECONDS
                )
                server.engine.kill()
                received += chunks
                stream = answer.headers["x-carousel-stream"]
    finally:
        server.stop()
    request_lines = [line for line in server.log if "bulk%d 7" in line]
    assert all(f"request bulk%d 7 (stream {stream}): " in line for line in request_lines)
    [preempted] = [line for line in request_lines if line.startswith("DEBUG carousel.engine: ")]
    assert "was preempted by" in preempted and "for request person: " in preempted
    [engine_line] = [line for line in request_lines if " carousel.in_flight: " in line]
    assert "the engine died" in engine_line
    [access] = [line for line in server.access if "request_id=bulk%d 7" in line]
    assert f"stream={stream}" in access
    assert re.search(r" bytes=(\d+) ", access)[1] == str(len(b"".join(received)))


@pytest.mark.parametrize("given", [b"X-Request-Id: mine\r\n", b""])
def test_a_handshake_refused_by_the_library_has_a_request_id(server: Server, given: bytes):
    """An unknown version of the protocol does not reach the application."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    head = (
        b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 12\r\n%b\r\n" % given
    )
    with socket.create_connection((host, int(port)), timeout=HANG_SECONDS) as connection:
        connection.sendall(head)
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    assert re.match(rb"HTTP/1.1 4\d\d ", answer)
    [own] = re.findall(rb"\r\nX-Request-Id: (.*?)\r\n", answer, re.I)
    assert own == b"mine" if given else len(own) == 24
