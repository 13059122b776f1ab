"""HTTP server whose answers to MCP requests are chosen by a test, and which ignores every rule that the test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INITIALIZED = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}


class Handler(BaseHTTPRequestHandler):
    """One request. message: its JSON."""

    server: HostileServer
    message: dict[str, Any]

    def do_POST(self) -> None:
        """Answer the handshake, and all else as the test wants."""
        self.message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(
            (self.message["method"], {name.lower(): each for name, each in self.headers.items()})
        )
        try:
            if self.message["method"] in self.server.answers:
                self.server.answers[self.message["method"]](self)
            elif self.message["method"] == "initialize":
                self.send_result(INITIALIZED)
            elif "id" in self.message:
                self.send_result({"tools": []})
            else:
                self.send(b"", status=202)
        except OSError:
            pass  # the client has ended the connection

    def send(self, body: bytes, status: int = 200, **headers: str) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in {"Content_Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def send_result(self, result: Any, **headers: str) -> None:
        """Send the result of the request."""
        body = {"jsonrpc": "2.0", "id": self.message["id"], "result": result}
        self.send(json.dumps(body).encode(), **headers)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


Answer = Callable[[Handler], None]


class HostileServer(ThreadingHTTPServer):
    """The server. answers: by the method of requests. requests: the method and headers of each."""

    daemon_threads = True

    def __init__(self, answers: dict[str, Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.has_ended = threading.Event()  # ends answers that would go on for ever

    @property
    def url(self) -> str:
        """Return the URL of its endpoint."""
        return f"http://127.0.0.1:{self.server_port}/mcp"


@contextmanager
def hostile(answers: dict[str, Answer]) -> Iterator[HostileServer]:
    """Yield a running server."""
    server = HostileServer(answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.has_ended.set()
        server.shutdown()
        server.server_close()


def never(handler: Handler) -> None:
    """Send nothing until the test ends."""
    handler.server.has_ended.wait()


def endless(media_type: str, piece: bytes) -> Answer:
    """Return an answer that repeats a piece until the client leaves."""

    def answer(handler: Handler) -> None:
        handler.send(b"", Content_Type=media_type)
        while not handler.server.has_ended.is_set():
            handler.wfile.write(piece)

    return answer
