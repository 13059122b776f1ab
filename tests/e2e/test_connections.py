"""What clients do to a connection, below what any library of theirs would do."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import closing

import httpx
import pytest

from app.connection import MAX_HEAD
from tests.conftest import Server
from tests.e2e.raw import opened, received

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPGRADE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(scope="module")
def server():
    """One slot: sixteen answers of 1900 tokens take it for seconds."""
    running = Server.start("--max-num-seqs", "1")
    yield running
    running.stop()


def asked(max_tokens: int, **fields) -> bytes:
    """A request for an answer of just so many tokens."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens, "ignore_eos": True, **fields}
    raw = json.dumps(body).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(raw), raw)


def stream_of(connection: socket.socket) -> bytes:
    """The id of the stream that begins there."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(1 << 16)
    return re.search(rb"x-carousel-stream: (\S+)", answer)[1]


def taken(server: Server) -> float:
    """Slots."""
    (line,) = re.findall(r'^carousel:slots\{.*state="taken"\} (\S+)$', httpx.get(f"{server.url}/metrics").text, re.M)
    return float(line)


def generated(server: Server) -> float:
    """Tokens so far."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))


def until(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(condition())


@pytest.mark.parametrize("behind", [b"", HEALTH, asked(5), UPGRADE % b"localhost", b"nonsense\r\n\r\n"])
@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_frees_the_slots_whatever_was_sent_behind(server: Server, stream: bool, behind: bytes):
    """They are not kept until the answer's end, for nobody; and the log has nothing to say about it."""
    said, before = len(server.log), generated(server)
    with closing(opened(server)) as connection:
        connection.sendall(asked(1900, n=16, stream=stream) + behind)
        assert until(lambda: taken(server), 30)
    assert until(lambda: not taken(server), 60)
    assert generated(server) - before < 16 * 1900 / 2
    assert server.log[said:] == []


@pytest.mark.parametrize("behind", [HEALTH * 3, UPGRADE % b"localhost", b"nonsense\r\n\r\n"])
def test_an_answer_is_whole_whatever_was_sent_behind(server: Server, behind: bytes):
    """Nothing is written into it, and the connection ends with it."""
    with closing(opened(server)) as connection:
        connection.sendall(asked(20, stream=True) + behind)
        answer = received(connection)
    assert answer.count(b"HTTP/1.1") == 1 and b"101 Switching" not in answer
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_a_client_that_reads_late_loses_nothing(server: Server):
    """Of five megabytes, where sockets keep four: what its could not take at once comes when it can."""
    question = asked(1500, stream=True, seed=3, temperature=1.0, n=2, logprobs=True, top_logprobs=20)
    url, texts = httpx.URL(server.url), []
    for pause in (5.0, 0.0):
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(30)
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
    """By choice, of a streamed answer as it was on the wire. Its events are in order."""
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


def test_nonsense_for_a_body_is_no_refusal_in_the_middle_of_an_answer(server: Server):
    """A stream is read by GET, and begins before the body that came with it is complete."""
    with closing(opened(server)) as reader, closing(opened(server)) as other:
        reader.sendall(asked(600, stream=True))
        name = stream_of(reader)
        chunked = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        other.sendall(b"GET /v1/streams/%s HTTP/1.1\r\n%s" % (name, chunked))
        answer = other.recv(300)
        other.sendall(b"zz\r\nnonsense")
        answer += received(other)
    assert answer.count(b"HTTP/1.1") == 1
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_who_sends_no_more_is_gone_even_with_much_to_take(server: Server):
    """What still waits for room in its socket would hide from us that it has left."""
    before = generated(server)
    with closing(opened(server)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(asked(1900, stream=True, n=6, logprobs=True, top_logprobs=20))  # 19 MB
        assert until(lambda: generated(server) - before > 4000, 60)  # of which sockets keep four
        connection.shutdown(socket.SHUT_WR)
        assert until(lambda: not taken(server), 60)
    assert generated(server) - before < 6 * 1900


def test_the_head_of_a_stream_has_no_body(server: Server):
    """While the answer is spoken, too: it would stand where the connection's next answer is looked for."""
    with closing(opened(server)) as reader, closing(opened(server)) as other:
        reader.sendall(asked(300, stream=True))
        name = stream_of(reader)
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
    """As clients that keep it do."""
    with closing(opened(server)) as connection:
        for _ in range(3):
            connection.sendall(HEALTH)
            answer = b""
            while b'"ready"' not in answer:
                chunk = connection.recv(1 << 16)
                assert chunk
                answer += chunk


@pytest.mark.parametrize("size", [MAX_HEAD - 1000, MAX_HEAD + 1, 2 * MAX_HEAD])
@pytest.mark.parametrize("start", [b"GET /health HTTP/1.1\r\nX: ", b"GET /health?"])
def test_a_head_is_measured_though_it_comes_at_once(server: Server, start: bytes, size: int):
    """A long address, and a long header, with their end."""
    ending = b" HTTP/1.1" * (b"?" in start) + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with closing(opened(server)) as connection:
        connection.sendall(start + b"a" * size + ending)
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 200 " if size < MAX_HEAD else b"HTTP/1.1 431 ")


@pytest.mark.parametrize("head", [b"X-Long: " + b"a" * (1 << 22), b"X-Short: a\r\n" * (1 << 18)])
def test_headers_without_an_end_are_refused_before_they_fill_the_memory(server: Server, head: bytes):
    """One long one, and many."""
    said = len(server.log)
    with closing(opened(server)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + head)
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "headers_too_large" and str(MAX_HEAD) in error["message"]
    assert server.log[said:] == []


def test_a_body_is_not_taken_for_headers(server: Server):
    """However long it is, and however it comes."""
    raw = json.dumps({"prompt": "fox"}).encode() + b" " * (1 << 17)
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(raw)
    with closing(opened(server)) as connection:
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
def test_a_client_that_offers_another_protocol_is_answered_in_this_one(server: Server, is_chunked: bool, at_once: bool):
    """As clients of HTTP/2 do in every first request; its body is its body, and no request of its own."""
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
        with closing(opened(server)) as connection:
            pieces = [head + body] if at_once else [head, body[:7], body[7:]]
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.05)
            answer = received(connection)
        assert answer.startswith(b"HTTP/1.1 %d " % status) and answer.count(b"HTTP/1.1") == 1


def test_what_is_sent_behind_a_body_belongs_to_no_request_that_offers_another_protocol(server: Server):
    raw = json.dumps({"prompt": "a fox"}).encode()
    request = (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(raw), raw)
    )
    with closing(opened(server)) as connection:
        connection.sendall(request + request)
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1") == 1


def test_a_request_for_two_hosts_is_refused(server: Server):
    with closing(opened(server)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: elsewhere\r\n\r\n")
        assert received(connection).startswith(b"HTTP/1.1 400 ")


def test_the_time_in_which_a_client_sends_its_request_is_told_apart(server: Server):
    """From what the server takes for it."""
    whole = asked(2)
    with closing(opened(server)) as connection:
        connection.sendall(whole[:-10])
        time.sleep(0.1)
        connection.sendall(whole[-10:])
        stream = stream_of(connection).decode()
    account = httpx.get(f"{server.url}/v1/requests/{stream}").json()
    first, second, *_ = account["choices"][0]["intervals"]
    assert (first["phase"], first["cause"]) == ("intake", "body") and 50 < first["ms"] < account["wall_ms"]
    assert second["phase"] == "intake" and "cause" not in second


def test_a_body_that_is_none_is_refused_at_once(server: Server):
    """And not waited for to its end."""
    said = len(server.log)
    with closing(opened(server)) as connection:
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        time.sleep(0.1)
        connection.sendall(b"nonsense\r\n")
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
    assert server.log[said:] == []


def test_what_is_not_http_is_refused_in_the_protocol_s_shape(server: Server):
    """And not logged: it is not our mistake."""
    said = len(server.log)
    with closing(opened(server)) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # the beginning of TLS
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
    assert b"\r\nx-request-id: " in answer
    assert server.log[said:] == []


def test_a_frame_that_is_no_text_is_refused_without_a_traceback(server: Server):
    """Close code 1007 says it."""
    said = len(server.log)
    url = httpx.URL(server.url)
    with closing(opened(server)) as connection:
        connection.sendall(UPGRADE % f"{url.host}:{url.port}".encode())
        assert b"101 Switching" in connection.recv(1 << 16)
        connection.sendall(b"\x81\x82\0\0\0\0\xc3\x28")
        assert b"\x88\x02" + (1007).to_bytes(2, "big") in received(connection)
    assert server.log[said:] == []


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /health HTTP/1.0\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", b"421"),
    ],
)
def test_a_health_check_in_http_1_0_need_not_know_this_server_s_name(server, head: bytes, status: bytes):
    """The protocol has no Host; what says one is held to it, and so is who speaks a protocol that has one."""
    with closing(opened(server)) as connection:
        connection.sendall(head)
        assert received(connection).startswith(b"HTTP/1.1 " + status)


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
def test_heads_that_are_wrong_are_refused_by_name(server: Server, request_head: bytes, status: int, code: str):
    """In the protocol's shape, whoever finds it: the parser, the connection or a route."""
    with closing(opened(server)) as connection:
        connection.sendall(request_head + b"Connection: close\r\n\r\n")
        head, _, body = received(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), head
    assert json.loads(body)["error"]["code"] == code


@pytest.mark.parametrize("host", [b"localhost", b"127.0.0.1:8000", b"[::1]", b"[::1]:8000", b"LOCALHOST", b""])
def test_hosts_that_are_right_are_taken(server: Server, host: bytes):
    """With and without a port; in absolute form the URL's counts."""
    target = b"http://%s/livez" % host if host else b"/livez"
    with closing(opened(server)) as connection:
        connection.sendall(b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (target, host))
        assert received(connection).startswith(b"HTTP/1.1 200 ")


def test_a_body_in_chunks_of_a_byte_is_read_in_many_turns(server: Server):
    """All of it, and the answer is that of a body in one piece."""
    body = json.dumps({"prompt": "x" * 30_000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    answers = []
    for request in (
        head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
        head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body),
    ):
        with closing(opened(server)) as connection:
            connection.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            answers.append(received(connection).partition(b"\r\n\r\n")[2])
    assert answers[0] == answers[1] and json.loads(answers[0])
