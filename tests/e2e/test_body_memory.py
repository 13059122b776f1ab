"""Memory of bodies on a running server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import httpx
import pytest

from app.admission.body_budget import MEMORY_PER_BYTE, RECEIVED_BYTES
from tests.conftest import Server
from tests.e2e.raw import open_socket, read_all, wait_until
from tests.e2e.test_connection_limits import metric

MAX_BODY = 1 << 20
BODY = json.dumps({"prompt": "a" * (MAX_BODY - 100)}).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Yield a server on which each tenant has memory for one body."""
    memory = ("--max-tenant-body-memory", str(MEMORY_PER_BYTE * MAX_BODY))
    keys = ("--api-key", "anna,bert", "--public-metrics")
    server = Server.start("--max-body", str(MAX_BODY), *memory, *keys, "--max-num-seqs", "1")
    yield server
    server.stop()


def begin(
    server: Server, sent: bytes, key: str = "anna", framing: str = f"Content-Length: {len(BODY)}"
) -> socket.socket:
    """Return a connection on which the head of a completion and a part of its body were sent."""
    connection = open_socket(server)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
    connection.sendall(f"{head}{framing}\r\n\r\n".encode() + sent)
    return connection


def test_a_body_waits_for_the_memory_of_its_tenant_only(server: Server):
    """A slow upload of one key holds up the next body of this key, its small ones and other keys are answered."""
    with ExitStack() as stack:
        slow = stack.enter_context(closing(begin(server, b"{")))
        wait_until(lambda: metric(server, "body_memory_bytes") == MEMORY_PER_BYTE * len(BODY))
        waiting = stack.enter_context(closing(begin(server, BODY[: 1 << 16])))
        wait_until(lambda: metric(server, "bodies_waiting") == 1)
        other = stack.enter_context(closing(begin(server, BODY, "bert")))
        assert read_all(other).startswith(b"HTTP/1.1 400 ")  # its prompt is too long for the model
        headers = {"Authorization": "Bearer anna"}
        small = httpx.post(f"{server.url}/v1/completions", json={"prompt": "Hi", "max_tokens": 1}, headers=headers)
        assert small.status_code == 200 and metric(server, "bodies_waiting") == 1
        slow.close()
        waiting.sendall(BODY[1 << 16 :])
        assert read_all(waiting).startswith(b"HTTP/1.1 400 ")
    wait_until(lambda: metric(server, "body_memory_bytes") == 0)


def test_a_chunked_body_reserves_the_maximum_until_it_is_complete(server: Server):
    """Its size is unknown before."""
    with closing(begin(server, b"1\r\n{\r\n", framing="Transfer-Encoding: chunked")) as connection:
        wait_until(lambda: metric(server, "body_memory_bytes") == MEMORY_PER_BYTE * MAX_BODY)
        connection.sendall(b"1\r\n}\r\n0\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")
    wait_until(lambda: metric(server, "body_memory_bytes") == 0)


def test_a_streamed_answer_reserves_no_memory_for_its_body(server: Server):
    """The memory is free once the request is queued."""
    body = {"prompt": "a", "user": "b" * 100_000, "max_tokens": 500, "ignore_eos": True, "stream": True}
    headers = {"Authorization": "Bearer anna"}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers) as response:
        assert response.status_code == 200
        next(response.iter_lines())
        assert metric(server, "body_memory_bytes") == 0


def test_a_body_beyond_those_that_may_wait_is_refused_unread(server: Server):
    """The client gets its answer although the server has not read the body, and the connection is closed."""
    most = MEMORY_PER_BYTE * MAX_BODY // RECEIVED_BYTES
    with ExitStack() as stack:
        for _ in range(1 + most):
            stack.enter_context(closing(begin(server, b"{")))
        wait_until(lambda: metric(server, "bodies_waiting") == most)
        refused = stack.enter_context(closing(begin(server, BODY[: 1 << 16])))
        head, _, body = read_all(refused).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ") and b"retry-after: 5" in head
        assert json.loads(body)["error"]["code"] == "max_tenant_body_memory_exceeded"
        headers = {"Authorization": "Bearer anna"}
        small = httpx.post(f"{server.url}/v1/completions", json={"prompt": "Hi", "max_tokens": 1}, headers=headers)
        assert small.status_code == 200
