"""Behaviour of raw connections that no client library would produce."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import closing

import httpx
import pytest

from app.http.connection import MAX_HEAD_BYTES
from tests.conftest import Server
from tests.e2e.raw import open_socket, read_all
from tests.limits import HANG_SECONDS

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPGRADE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(scope="module")
def server():
    """Yield a server with one slot, which sixteen answers of 1900 tokens occupy for seconds."""
    running = Server.start("--max-num-seqs", "1")
    yield running
    running.stop()


def chat_request(max_tokens: int, **fields) -> bytes:
    """Return a request for an answer of exactly `max_tokens` tokens."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens, "ignore_eos": True, **fields}
    raw = json.dumps(body).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(raw), raw)


def stream_id_of(connection: socket.socket) -> bytes:
    """Read the head of a response and return the id of its stream."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(1 << 16)
    return re.search(rb"x-carousel-stream: (\S+)", answer)[1]


def slots_taken(server: Server) -> float:
    """Return the number of occupied slots."""
    (line,) = re.findall(r'^carousel:slots\{.*state="taken"\} (\S+)$', httpx.get(f"{server.url}/metrics").text, re.M)
    return float(line)


def generated(server: Server) -> float:
    """Return the number of tokens generated so far."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))


def wait_until(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)  # a look at the metrics takes the server milliseconds
    return bool(condition())


@pytest.mark.parametrize("trailing", [b"", HEALTH, chat_request(5), UPGRADE % b"localhost", b"nonsense\r\n\r\n"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnect_frees_the_slots_despite_trailing_data(server: Server, stream: bool, trailing: bytes):
    """They are not computed to their end without a client, and nothing is logged."""
    log_length, before = len(server.log), generated(server)
    with closing(open_socket(server)) as connection:
        connection.sendall(chat_request(1900, n=16, stream=stream) + trailing)
        assert wait_until(lambda: slots_taken(server), HANG_SECONDS)
    assert wait_until(lambda: not slots_taken(server), HANG_SECONDS)
    assert generated(server) - before < 16 * 1900 / 2
    assert server.log[log_length:] == []


@pytest.mark.parametrize("trailing", [HEALTH * 3, UPGRADE % b"localhost", b"nonsense\r\n\r\n"])
def test_trailing_data_does_not_change_an_answer(server: Server, trailing: bytes):
    """Nothing is written into it, and the connection ends with it."""
    with closing(open_socket(server)) as connection:
        connection.sendall(chat_request(20, stream=True) + trailing)
        answer = read_all(connection)
    assert answer.count(b"HTTP/1.1") == 1 and b"101 Switching" not in answer
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_a_client_that_reads_late_loses_nothing(server: Server):
    """The answer has five megabytes and sockets buffer four; the rest is written when the client reads."""
    question = chat_request(1500, stream=True, seed=3, temperature=1.0, n=2, logprobs=True, top_logprobs=20)
    url, texts = httpx.URL(server.url), []
    for pause in (5.0, 0.0):
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(HANG_SECONDS)
            connection.connect((url.host, url.port))
            connection.sendall(question)
            time.sleep(pause)
            answer = bytearray()
            while not answer.endswith(b"\r\n0\r\n\r\n"):
                chunk = connection.recv(1 << 20)
                assert chunk
                answer += chunk
            texts.append(texts_of(bytes(answer)))
    assert texts[0] == texts[1] and all(texts[0].values()) and len(texts[0]) == 2


def texts_of(answer: bytes) -> dict[int, str]:
    """Return the texts by choice of a raw streamed response, after checking the order of its events."""
    pieces, at = [], answer.index(b"\r\n\r\n") + 4
    while at < len(answer):
        begin = answer.index(b"\r\n", at) + 2
        size = int(answer[at:begin], 16)
        pieces.append(answer[begin : begin + size])
        at = begin + size + 2
    body = b"".join(pieces)
    ids = [int(seq) for seq in re.findall(rb"^id: .*\.(\d+)$", body, re.M)]
    assert ids == sorted(set(ids))
    texts: dict[int, str] = {}
    for data in re.findall(rb"^data: (\{.*\})$", body, re.M):
        for choice in json.loads(data)["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"].get("content", "")
    return texts


def test_an_invalid_body_writes_no_error_into_a_running_response(server: Server):
    """A stream is read by GET, and begins before the request's own body is complete."""
    with closing(open_socket(server)) as reader, closing(open_socket(server)) as other:
        reader.sendall(chat_request(600, stream=True))
        name = stream_id_of(reader)
        chunked = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        other.sendall(b"GET /v1/streams/%s HTTP/1.1\r\n%s" % (name, chunked))
        answer = other.recv(300)
        other.sendall(b"zz\r\nnonsense")
        answer += read_all(other)
    assert answer.count(b"HTTP/1.1") == 1
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_a_half_closed_connection_counts_as_disconnected(server: Server):
    """Data that waits for a full socket would otherwise hide that the client has disconnected."""
    before = generated(server)
    with closing(open_socket(server)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(chat_request(1900, stream=True, n=6, logprobs=True, top_logprobs=20))  # 19 MB
        assert wait_until(lambda: generated(server) - before > 4000, HANG_SECONDS)  # of which sockets buffer four
        connection.shutdown(socket.SHUT_WR)
        assert wait_until(lambda: not slots_taken(server), HANG_SECONDS)
    assert generated(server) - before < 6 * 1900


def test_a_head_request_of_a_stream_has_no_body(server: Server):
    """A body would be taken for the connection's next response, also while the answer is generated."""
    with closing(open_socket(server)) as reader, closing(open_socket(server)) as other:
        reader.sendall(chat_request(300, stream=True))
        name = stream_id_of(reader)
        other.sendall(b"HEAD /v1/streams/%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % name)
        head = b""
        while b"\r\n\r\n" not in head:
            head += other.recv(1 << 16)
        assert head.startswith(b"HTTP/1.1 200 ")
        answer = b""
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            answer += reader.recv(1 << 16)
        time.sleep(0.1)
        other.sendall(HEALTH)
        head += other.recv(1 << 16)
        assert head.partition(b"\r\n\r\n")[2].startswith(b"HTTP/1.1 200 ")


def test_a_connection_takes_one_request_after_another(server: Server):
    """Clients reuse connections in this way."""
    with closing(open_socket(server)) as connection:
        for _ in range(3):
            connection.sendall(HEALTH)
            answer = b""
            while b'"ready"' not in answer:
                chunk = connection.recv(1 << 16)
                assert chunk
                answer += chunk


@pytest.mark.parametrize("size", [MAX_HEAD_BYTES - 1000, MAX_HEAD_BYTES + 1, 2 * MAX_HEAD_BYTES])
@pytest.mark.parametrize("start", [b"GET /health HTTP/1.1\r\nX: ", b"GET /health?"])
def test_a_head_that_arrives_at_once_is_measured_too(server: Server, start: bytes, size: int):
    """The path or one header is long, and the head is complete."""
    ending = b" HTTP/1.1" * (b"?" in start) + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with closing(open_socket(server)) as connection:
        connection.sendall(start + b"a" * size + ending)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200 " if size < MAX_HEAD_BYTES else b"HTTP/1.1 431 ")


@pytest.mark.parametrize("head", [b"X-Long: " + b"a" * (1 << 22), b"X-Short: a\r\n" * (1 << 18)])
def test_endless_headers_are_refused_at_the_size_limit(server: Server, head: bytes):
    """There is one long header, or there are many."""
    log_length = len(server.log)
    with closing(open_socket(server)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + head)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "headers_too_large" and str(MAX_HEAD_BYTES) in error["message"]
    assert server.log[log_length:] == []


def test_a_body_is_not_taken_for_headers(server: Server):
    """This holds for any length, and for a body that arrives in pieces."""
    raw = json.dumps({"prompt": "fox"}).encode() + b" " * (1 << 17)
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(raw)
    with closing(open_socket(server)) as connection:
        for _ in range(2):
            connection.sendall(head + raw[:100])
            time.sleep(0.05)
            connection.sendall(raw[100:])
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += connection.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200 ")
            length = int(re.search(rb"content-length: (\d+)", answer)[1])
            body = answer.partition(b"\r\n\r\n")[2]
            while len(body) < length:
                body += connection.recv(1 << 16)


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_an_offered_protocol_upgrade_is_ignored(server: Server, is_chunked: bool, at_once: bool):
    """Clients of HTTP/2 offer it in every first request; the body of that request is not a request itself."""
    raw = HEALTH + b" " * 100
    length = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % len(raw)
    head = (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n%b\r\n\r\n" % length
    )
    texts = [json.dumps({"prompt": "a fox"}).encode(), raw]
    for text, status in zip(texts, (200, 400), strict=True):
        body = text.ljust(len(raw))
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
        with closing(open_socket(server)) as connection:
            pieces = [head + body] if at_once else [head, body[:7], body[7:]]
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.05)
            answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 %d " % status) and answer.count(b"HTTP/1.1") == 1


def test_data_after_the_body_of_an_upgrade_offer_is_not_parsed(server: Server):
    raw = json.dumps({"prompt": "a fox"}).encode()
    request = (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(raw), raw)
    )
    with closing(open_socket(server)) as connection:
        connection.sendall(request + request)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1") == 1


def test_a_request_for_two_hosts_is_refused(server: Server):
    with closing(open_socket(server)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: elsewhere\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")


def test_upload_time_is_an_interval_of_its_own(server: Server):
    """Its interval is separate from the server's own time."""
    request = chat_request(2)
    with closing(open_socket(server)) as connection:
        connection.sendall(request[:-10])
        time.sleep(0.1)
        connection.sendall(request[-10:])
        stream = stream_id_of(connection).decode()
    timeline = httpx.get(f"{server.url}/v1/requests/{stream}").json()
    first, second, *_ = timeline["choices"][0]["intervals"]
    assert (first["phase"], first["cause"]) == ("intake", "body") and 50 < first["ms"] < timeline["wall_ms"]
    assert second["phase"] == "intake" and "cause" not in second


def test_an_invalid_chunked_body_is_refused_at_once(server: Server):
    """The error is sent before the body ends."""
    log_length = len(server.log)
    with closing(open_socket(server)) as connection:
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        time.sleep(0.1)
        connection.sendall(b"nonsense\r\n")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
    assert server.log[log_length:] == []


def test_data_that_is_not_http_is_refused_in_the_protocol_s_shape(server: Server):
    """It is not logged, since it is not a fault of the server."""
    log_length = len(server.log)
    with closing(open_socket(server)) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # the beginning of TLS
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
    assert b"\r\nx-request-id: " in answer
    assert server.log[log_length:] == []


def test_a_text_frame_without_utf_8_is_refused_without_a_traceback(server: Server):
    """The close code is 1007."""
    log_length = len(server.log)
    url = httpx.URL(server.url)
    with closing(open_socket(server)) as connection:
        connection.sendall(UPGRADE % f"{url.host}:{url.port}".encode())
        assert b"101 Switching" in connection.recv(1 << 16)
        connection.sendall(b"\x81\x82\0\0\0\0\xc3\x28")
        assert b"\x88\x02" + (1007).to_bytes(2, "big") in read_all(connection)
    assert server.log[log_length:] == []


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /health HTTP/1.0\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", b"421"),
    ],
)
def test_a_health_check_in_http_1_0_needs_no_host(server, head: bytes, status: bytes):
    """HTTP/1.0 has no Host header; a given one is checked, and so are requests in HTTP/1.1."""
    with closing(open_socket(server)) as connection:
        connection.sendall(head)
        assert read_all(connection).startswith(b"HTTP/1.1 " + status)


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("request_head", "status", "code"),
    [
        (b"GET /health HTTP/2.0\r\nHost: localhost\r\n", 505, "http_version_not_supported"),
        (b"GET /health HTTP/0.9\r\nHost: localhost\r\n", 505, "http_version_not_supported"),
        (b"GET /health HTTP/3.7\r\nHost: localhost\r\n", 505, "http_version_not_supported"),
        (b"GET /health\r\n", 505, "http_version_not_supported"),
        (GET + b"Transfer-Encoding: gzip, chunked\r\n", 501, "transfer_coding_not_supported"),
        (GET + b"Transfer-Encoding: br\r\n", 501, "transfer_coding_not_supported"),
        (b"GET /health HTTP/1.1\r\nHost: somebody@localhost\r\n", 400, "bad_host"),
        (b"GET /health HTTP/1.1\r\nHost: [::1]x\r\n", 400, "bad_host"),
        (b"GET /health HTTP/1.1\r\nHost: [::1:]\r\n", 400, "bad_host"),
        (b"GET /health HTTP/1.1\r\nHost: localhost:abc\r\n", 400, "bad_host"),
        (GET + b"Host: localhost\r\n", 400, "duplicate_header"),
        (GET + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n", 400, "duplicate_header"),
        (b"GET http://elsewhere.example/health HTTP/1.1\r\nHost: localhost\r\n", 421, "misdirected_request"),
        (b"GET http://a@localhost/health HTTP/1.1\r\nHost: localhost\r\n", 400, "bad_host"),
        (UPGRADE.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"%s", b"localhost")[:-2], 400, "invalid_http"),
        (b"GET /static/js/main.js HTTP/1.1\r\nHost: localhost\r\nRange: bytes=9-1\r\n", 400, "bad_range"),
        (b"GET /static/js/main.js HTTP/1.1\r\nHost: localhost\r\nRange: bytes=99999999-\r\n", 416, "bad_range"),
    ],
)
def test_invalid_heads_are_refused_by_name(server: Server, request_head: bytes, status: int, code: str):
    """The error has the protocol's shape, whether the parser, the connection or a route finds the fault."""
    with closing(open_socket(server)) as connection:
        connection.sendall(request_head + b"Connection: close\r\n\r\n")
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), head
    assert json.loads(body)["error"]["code"] == code


@pytest.mark.parametrize("host", [b"localhost", b"127.0.0.1:8000", b"[::1]", b"[::1]:8000", b"LOCALHOST", b""])
def test_valid_hosts_are_accepted(server: Server, host: bytes):
    """The port is optional, and in absolute form the host of the URL counts."""
    target = b"http://%s/livez" % host if host else b"/livez"
    with closing(open_socket(server)) as connection:
        connection.sendall(b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (target, host))
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")


def test_a_body_in_chunks_of_one_byte_is_read_over_many_turns(server: Server):
    """The whole body is read, and the response is that for a body in one piece."""
    body = json.dumps({"prompt": "x" * 30_000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    answers = []
    for request in (
        head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
        head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body),
    ):
        with closing(open_socket(server)) as connection:
            connection.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            answers.append(read_all(connection).partition(b"\r\n\r\n")[2])
    assert answers[0] == answers[1] and json.loads(answers[0])
