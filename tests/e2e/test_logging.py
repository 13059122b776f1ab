"""What a server writes to standard error, and that it never waits for it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time

import httpx
from websockets.sync.client import connect

from tests.conftest import ROOT, Server

ASK = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}


def test_a_standard_error_that_is_not_read_stops_no_server():
    """At debug level, with a full pipe: requests are answered, and SIGTERM ends the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "app", "serve", "--port", str(port), "--log-level", "debug"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, pipesize=4096)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            while True:
                try:
                    if http.get("/health").status_code == 200:
                        break
                except httpx.ConnectError:
                    assert process.poll() is None
                time.sleep(0.05)
            metrics = ""
            while "carousel:log_lines_dropped_total 0.0" in metrics or not metrics:
                for _ in range(200):  # each writes a line, which all together the queue has no room for
                    assert http.get("/v1/models/" + "x" * 200).status_code == 404
                metrics = http.get("/metrics").text
            assert http.post("/v1/chat/completions", json=ASK).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_a_debug_log_has_neither_keys_nor_the_text_of_conversations():
    """Over HTTP and WebSocket."""
    server = Server.start("--log-level", "debug", "--api-key", "sk-hidden")
    headers = {"Authorization": "Bearer sk-hidden"}
    try:
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=ASK, headers=headers, timeout=60)
        assert answer.status_code == 200
        with connect(server.url.replace("http", "ws") + "/v1/realtime", additional_headers=headers) as socket_:
            content = [{"type": "input_text", "text": "a private matter"}]
            item = {"type": "message", "role": "user", "content": content}
            socket_.send(json.dumps({"type": "conversation.item.create", "item": item}))
            while "a private matter" not in socket_.recv(20):  # the server's event about the new item
                pass
    finally:
        server.stop()
    text = "\n".join(server.log + server.access)
    assert "sk-hidden" not in text and "a private matter" not in text
