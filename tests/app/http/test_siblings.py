"""Forwarding among API processes that share a port: which requests, and what is passed on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from starlette.responses import JSONResponse

from app.http import sibling_middleware
from app.http.sibling_middleware import BY_ID, SiblingMiddleware
from app.http.siblings import CLIENT_HEADER, LOOPBACK, SiblingAbsent, Siblings
from tests.limits import HANG_SECONDS


class Sibling:
    """A process that answers each request with given bytes, and records what it has received."""

    def __init__(self) -> None:
        self.answer = b""
        self.received: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-len")), 0)
        self.received.append(head + await reader.readexactly(length))
        writer.write(self.answer)
        writer.close()
        await writer.wait_closed()


@pytest.fixture
async def sibling() -> AsyncIterator[tuple[Sibling, Siblings]]:
    """Yield a process, and the second of two processes that forwards to it."""
    found = Sibling()
    server = await asyncio.start_server(found.serve, LOOPBACK, 0)
    yield found, Siblings(1, [server.sockets[0].getsockname()[1], 1])
    server.close()


def scope_of(path: str, **more):
    headers = [(b"authorization", b"Bearer k"), (b"connection", b"keep-alive"), (CLIENT_HEADER, b"6.6.6.6")]
    plain = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"a=1"}
    return {**plain, "headers": headers, "client": ("10.0.0.9", 4000), "server": ("127.0.0.1", 8000), **more}


@pytest.mark.parametrize(
    ("path", "is_by_id"),
    [
        ("/v1/streams/ab", True),
        ("/v1/responses/resp_ab/cancel", True),
        ("/v1/conversations/conv_ab/items", True),
        ("/v1/chat/completions/chatcmpl-ab", True),
        ("/v1/chat/completions", False),
        ("/v1/responses", False),
        ("/v1/responses/input_tokens", False),
        ("/v1/models/demo", False),
    ],
)
def test_requests_by_id_may_be_forwarded(path: str, is_by_id: bool):
    assert bool(BY_ID.match(path)) is is_by_id


async def test_a_request_is_passed_on_with_its_client(sibling: tuple[Sibling, Siblings]):
    """With key, query and body; a client cannot name another address for itself."""
    process, siblings = sibling
    process.answer = b"HTTP/1.1 200 OK\r\nx-id: 1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    forwarded = await siblings.forward(0, scope_of("/v1/streams/ab", method="POST"), b"{}")
    assert (forwarded.status_code, forwarded.raw_headers) == (200, [(b"x-id", b"1")])
    assert await forwarded.read_body() == b"abcde"
    forwarded.close()
    head, _, body = process.received[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/streams/ab?a=1 HTTP/1.1" and body == b"{}"
    assert b"authorization: Bearer k" in lines and b"connection: close" in lines
    assert [line for line in lines if line.startswith(CLIENT_HEADER)] == [CLIENT_HEADER + b": 10.0.0.9"]


@pytest.mark.parametrize(
    ("status", "body", "is_found"),
    [
        (b"200 OK", b"{}", True),
        (b"400 Bad Request", b'{"error":{"code":"invalid_value"}}', True),
        (b"400 Bad Request", b'{"error":{"code":"previous_response_not_found"}}', False),
        (b"404 Not Found", b"{}", False),
        (b"410 Gone", b"{}", False),
        (b"503 Service Unavailable", b'{"error":{"code":"held_elsewhere"}}', False),
        (b"503 Service Unavailable", b'{"error":{"code":"engine_unavailable"}}', True),
    ],
)
async def test_the_process_that_knows_an_id_is_found(
    sibling: tuple[Sibling, Siblings], status: bytes, body: bytes, is_found: bool
):
    """An error that is not about the id is its answer."""
    process, siblings = sibling
    process.answer = b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)
    found = await asyncio.wait_for(siblings.find(scope_of("/v1/streams/ab")), HANG_SECONDS)
    assert (found is not None) is is_found
    if found is not None:
        assert await found.read_body() == body
        found.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nconte", b"nonsense\r\n\r\n"])
async def test_a_process_that_ends_before_its_answer_has_none(sibling: tuple[Sibling, Siblings], answer: bytes):
    process, siblings = sibling
    process.answer = answer
    with pytest.raises(OSError, match=r"ended|cannot be read"):
        await siblings.forward(0, scope_of("/v1/streams/ab"))
    with pytest.raises(SiblingAbsent):
        await siblings.find(scope_of("/v1/streams/ab"))


async def test_a_process_that_cannot_be_asked_may_know_an_id(sibling: tuple[Sibling, Siblings]):
    """Unless another one knows it."""
    process, siblings = sibling
    with socket.create_server((LOOPBACK, 0)) as closed:
        port = closed.getsockname()[1]
    three = Siblings(2, [siblings._ports[0], port, 1])
    process.answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
    with pytest.raises(SiblingAbsent):
        await three.find(scope_of("/v1/streams/ab"))
    process.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    found = await three.find(scope_of("/v1/streams/ab"))
    assert found is not None
    found.close()


@pytest.mark.parametrize("returns", [False, True])
async def test_an_unknown_id_is_retried_while_a_process_is_started_again(monkeypatch, returns: bool):
    """It gets the answer of that process, or 503 with Retry-After, and never 404 before the process was asked."""
    monkeypatch.setattr(sibling_middleware, "HELD_SECONDS", HANG_SECONDS if returns else 0.0)
    with socket.create_server((LOOPBACK, 0)) as closed:
        port = closed.getsockname()[1]
    asked, process = asyncio.Event(), Sibling()
    process.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"

    async def application(scope, receive, send) -> None:
        asked.set()
        await JSONResponse({}, 404)(scope, receive, send)

    sent: list = []

    async def send(message) -> None:
        sent.append(message)

    messages: asyncio.Queue = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    middleware = SiblingMiddleware(application, Siblings(1, [port, 1]))
    answering = asyncio.create_task(middleware(scope_of("/v1/responses/resp_ab"), messages.get, send))
    await asyncio.wait_for(asked.wait(), HANG_SECONDS)
    server = await asyncio.start_server(process.serve, LOOPBACK, port) if returns else None
    await asyncio.wait_for(answering, HANG_SECONDS)
    assert sent[0]["status"] == (200 if returns else 503)
    assert returns or (b"retry-after", b"1") in sent[0]["headers"]
    if server is not None:
        server.close()


def test_each_key_has_one_home():
    """The same for all processes, and not one for all keys."""
    one, two = Siblings(0, [1, 2, 3]), Siblings(2, [1, 2, 3])
    homes = [one.home_of("anna", str(key)) for key in range(100)]
    assert homes == [two.home_of("anna", str(key)) for key in range(100)] and set(homes) == {0, 1, 2}
    assert one.has_sent(scope_of("/", server=("127.0.0.1", 1))) and not one.has_sent(scope_of("/"))
