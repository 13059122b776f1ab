"""Hostile clients of a local server, each bounded in time and connections, in a separate process.

`python -m benchmarks.hostile_clients CASE PORT SECONDS` builds the bytes to send, prints "ready", waits for a line on
standard input, attacks for that many seconds, and prints its outcomes as JSON. Connects to the loopback address only.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import psutil  # type: ignore[import-untyped]

from app.resources import demo_model
from app.text.packaged_model import DEFAULT_MODEL
from benchmarks.hostile_bodies import (
    endless_array,
    expensive_masks,
    hostile_format,
    many_parts,
    one_message,
    text_body,
    unknown_keys,
    words,
)
from benchmarks.hostile_replies import CONTINUATION, PING, PONG, RECEIVE_BYTES, TEXT, HttpReply, Reply, WebSocketReply
from benchmarks.hostile_steers import steer

HOST = "127.0.0.1"
DEMO_MODEL = demo_model()
CHECKER = "engine.constraints.checks"  # module of the process that checks formats
CONNECT_SECONDS = 5.0
SLOW_SECONDS = 2.0  # of an answer
MAX_CONNECTIONS = 20_000  # successive connections of one hostile client
CYCLE_BYTES = 1 << 16  # sent per call


Outcomes: TypeAlias = Counter[str]
Attack: TypeAlias = Callable[[int, float], Outcomes]  # from a port and a deadline (time.monotonic)


def frame(opcode: int, payload: bytes = b"", fin: bool = True) -> bytes:
    """Return a client's frame (RFC 6455, 5.2), masked with zeros, which leave the payload unchanged."""
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = b"\xfe" + size.to_bytes(2, "big")
    else:
        length = b"\xff" + size.to_bytes(8, "big")
    return bytes([fin << 7 | opcode]) + length + bytes(4) + payload


def event(kind: str, **fields: Any) -> bytes:
    """Return a realtime event as a frame."""
    return frame(TEXT, json.dumps({"type": kind, **fields}).encode())


def chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body (RFC 9112, 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def handshake(port: int, path: str = "/v1/realtime") -> bytes:
    """Return the request that opens a WebSocket."""
    return (
        f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    ).encode()


def post_head(port: int, path: str, framing: str) -> bytes:
    """Return the head of a JSON POST; the header `framing` delimits its body."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\n{framing}\r\n"
        "Connection: close\r\n\r\n"
    ).encode()


def exchange(port: int, opening: bytes, cycle: bytes, reply: Reply, deadline: float) -> str:
    """Send `opening`, then `cycle` repeatedly (unless empty), until the server ends the exchange or the deadline.

    Return the outcome.
    """
    outcome = None
    try:
        with socket.create_connection((HOST, port), CONNECT_SECONDS) as connection:
            connection.setblocking(False)
            unsent = memoryview(opening)
            while outcome is None and (left := deadline - time.monotonic()) > 0:
                writing = [connection] if unsent else []
                readable, writable, _ = select.select([connection], writing, [], left)
                if readable:
                    data = connection.recv(RECEIVE_BYTES)
                    outcome = reply.feed(data) if data else "end of stream"
                elif writable:
                    unsent = unsent[connection.send(unsent) :] or memoryview(cycle)
    except TimeoutError:
        return "no connection"
    except OSError as error:
        return type(error).__name__
    return outcome or "open at the deadline"


def repeat(connect: Callable[[], tuple[str, int]], deadline: float) -> Outcomes:
    """Connect repeatedly until the deadline; `connect` returns an outcome and the number of messages received."""
    outcomes: Outcomes = Counter()
    for _ in range(MAX_CONNECTIONS):
        outcome, messages = connect()
        outcomes[outcome] += 1
        outcomes["messages received"] += messages
        if time.monotonic() >= deadline:
            break
    return +outcomes


def flood_socket(cycle: bytes, opening: bytes = b"", path: str = "/v1/realtime") -> Attack:
    """Return an attack that sends frames at full speed on one WebSocket, reopening it when it is closed."""
    cycle *= max(1, CYCLE_BYTES // len(cycle))

    def attack(port: int, deadline: float) -> Outcomes:
        def connect() -> tuple[str, int]:
            reply = WebSocketReply()
            return exchange(port, handshake(port, path) + opening, cycle, reply, deadline), reply.messages

        return repeat(connect, deadline)

    return attack


def small_response(*, is_stored: bool) -> bytes:
    """Return the body of a response of one token."""
    return json.dumps({"input": "a", "max_output_tokens": 1, "store": is_stored}).encode()


def lanes(number: int) -> Attack:
    """Return an attack that begins endless responses in that many lanes, again and again."""
    fields = {"input": "Tell me a story.", "max_output_tokens": 2000, "store": False}
    return flood_socket(
        b"".join(event("response.create", stream_id=str(lane), **fields) for lane in range(number)), path=RESPONSES
    )


def retrieve(items: int, characters: int) -> Attack:
    """Return an attack that fills a conversation with items of that size and then retrieves them in turn."""
    names = [f"item{number}" for number in range(items)]
    content = [{"type": "input_text", "text": "a" * characters}]
    fields = {"type": "message", "role": "user", "content": content}
    created = [event("conversation.item.create", item=fields | {"id": name}) for name in names]
    retrievals = [event("conversation.item.retrieve", item_id=name) for name in names]
    return flood_socket(b"".join(retrievals), b"".join(created))


def post(path: str, body: bytes, connections: int = 8, headers: str = "") -> Attack:
    """Return an attack that posts `body` repeatedly on that many concurrent connections."""
    return post_each(path, lambda number: body, connections, lambda number: headers)


def post_each(
    path: str,
    make_body: Callable[[int], bytes],
    connections: int = 8,
    make_headers: Callable[[int], str] = lambda number: "",
) -> Attack:
    """Return an attack that posts the body of each number in turn, on that many concurrent connections.

    The outcome of a slow answer says so. make_headers: returns further headers of a number, each after a line break.
    """

    def attack(port: int, deadline: float) -> Outcomes:
        numbers = count()

        def connect() -> tuple[str, int]:
            number = next(numbers)
            body = make_body(number)
            request = post_head(port, path, f"Content-Length: {len(body)}{make_headers(number)}") + body
            began = time.monotonic()
            outcome = exchange(port, request, b"", HttpReply(), deadline)
            is_slow = time.monotonic() - began > SLOW_SECONDS
            return f"{outcome} after more than {SLOW_SECONDS:g} s" if is_slow else outcome, 0

        with ThreadPoolExecutor(connections) as threads:
            works = [threads.submit(repeat, connect, deadline) for _ in range(connections)]
            return sum((work.result() for work in works), Counter())

    return attack


def small_chunks(path: str) -> Attack:
    """Return an attack that sends a body in chunks of one byte, again when it is refused."""
    cycle = chunk(b"a")
    cycle *= CYCLE_BYTES // len(cycle)

    def attack(port: int, deadline: float) -> Outcomes:
        opening = post_head(port, path, "Transfer-Encoding: chunked") + chunk(b'{"messages":"')
        return repeat(lambda: (exchange(port, opening, cycle, HttpReply(), deadline), 0), deadline)

    return attack


def watch(path: str, watchers: int) -> Attack:
    """Return an attack that follows an endless response on that many connections."""

    def attack(port: int, deadline: float) -> Outcomes:
        outcomes: Outcomes = Counter()
        request = f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode()
        poll = select.poll()
        connections = {}
        for _ in range(watchers):
            connection = socket.create_connection((HOST, port), CONNECT_SECONDS)
            connection.sendall(request)
            connections[connection.fileno()] = connection
            poll.register(connection, select.POLLIN)
        while connections and (left := deadline - time.monotonic()) > 0:
            for number, _ in poll.poll(1000 * left):
                data = connections[number].recv(RECEIVE_BYTES)
                outcomes["messages received"] += data.count(b"data: ")
                if not data:
                    poll.unregister(number)
                    connections.pop(number).close()
                    outcomes["end of stream"] += 1
        outcomes["open at the deadline"] += len(connections)
        for connection in connections.values():
            connection.close()
        return +outcomes

    return attack


def kill_checker(interval: float) -> Attack:
    """Return an attack that sends new formats while it kills the process that checks them, `interval` seconds apart."""
    send = post_each(CHAT, hostile_format, 1)

    def attack(port: int, deadline: float) -> Outcomes:
        kills: Outcomes = Counter()
        killer = threading.Thread(target=_kill_checkers, args=(port, interval, deadline, kills))
        killer.start()
        outcomes = send(port, deadline)
        killer.join()
        return outcomes + kills

    return attack


def _kill_checkers(port: int, interval: float, deadline: float, kills: Outcomes) -> None:
    """Kill the checking process of the server at `port` repeatedly."""
    server = next(process for process in psutil.process_iter() if listens(process, port))
    while time.monotonic() < deadline:
        for child in server.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if CHECKER in child.cmdline():
                    child.kill()
                    kills["kills of the checking process"] += 1
        time.sleep(interval)


def listens(process: psutil.Process, port: int) -> bool:
    """Return whether a process listens at a port."""
    try:
        connections = process.net_connections("tcp")
    except psutil.Error:  # of another user, or ended
        return False
    return any(each.laddr.port == port and each.status == psutil.CONN_LISTEN for each in connections)


@dataclass(frozen=True)
class Case:
    """Kind of hostile client."""

    text: str
    prepare: Callable[[], Attack]
    model: Path = DEMO_MODEL
    options: tuple[str, ...] = ()  # of the server; {folder}: an empty folder
    is_served: bool = False  # it takes a share of the engine like other clients, so that it may delay their tokens
    control: str = ""  # case of an ordinary client with as many answers, which runs in the undisturbed window


CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
FLOOD_KEY, CALM_KEY = "flood", "calm"  # of hostile and of ordinary clients, on a server with keys
WITH_KEYS = ("--api-key", f"{FLOOD_KEY},{CALM_KEY}", "--public-metrics")
AS_FLOOD = f"\r\nAuthorization: Bearer {FLOOD_KEY}"
WITH_STORE = ("--store", "{folder}/store.db", "--store-size", "4000000")  # which 4,000 records fill
MAX_IDS = 1 << 17  # token IDs per request
SIZE = 4_000_000  # characters of large texts; the limit of a body is 4 MiB
CASES = {
    "pings": Case("empty pings", lambda: flood_socket(frame(PING))),
    "pongs": Case("unsolicited pongs", lambda: flood_socket(frame(PONG))),
    "continuations": Case(
        "empty continuation frames", lambda: flood_socket(frame(CONTINUATION, fin=False), frame(TEXT, fin=False))
    ),
    "unknown-events": Case("unknown realtime events", lambda: flood_socket(event("unknown"))),
    "retrieve": Case("conversation.item.retrieve among 1,024 items", lambda: retrieve(1024, 10)),
    "retrieve-large": Case("conversation.item.retrieve of items of 1 MB", lambda: retrieve(4, 1_000_000)),
    "lanes": Case("endless responses in 1,000 lanes of a WebSocket", lambda: lanes(1000)),
    "steers": Case(
        "responses that are steered as soon as they begin, of another key",
        lambda: partial(steer, key=FLOOD_KEY),
        options=WITH_KEYS,
    ),
    "conversations": Case(
        "small conversations, each of which is stored",
        lambda: post("/v1/conversations", json.dumps({"items": [{"role": "user", "content": "a"}]}).encode()),
        options=WITH_STORE,
    ),
    "responses": Case(
        "small responses that are stored, beside as many that are not",
        lambda: post(RESPONSES, small_response(is_stored=True)),
        options=WITH_STORE,
        control="responses-unstored",
    ),
    "responses-unstored": Case(
        "small responses", lambda: post(RESPONSES, small_response(is_stored=False)), options=WITH_STORE, is_served=True
    ),
    "parts": Case("bodies of 2,200 messages of 60 parts", lambda: post(CHAT, many_parts(2200, 60))),
    "parts-allowed": Case("bodies of 60 messages of 60 parts", lambda: post(CHAT, many_parts(60, 60))),
    "tokenize": Case("3.9 MB to /tokenize", lambda: post("/tokenize", text_body(words(3_900_000)))),
    "keys": Case("bodies with 350,000 unknown keys", lambda: post(CHAT, unknown_keys(350_000))),
    "keys-allowed": Case("bodies with 30,000 unknown keys", lambda: post(CHAT, unknown_keys(30_000))),
    "detokenize": Case(
        "131,072 ids to /detokenize", lambda: post("/detokenize", json.dumps({"tokens": [300] * MAX_IDS}).encode())
    ),
    "watchers": Case("300 watchers of /v1/engine/events", lambda: watch("/v1/engine/events", 300)),
    "chunks": Case("a body in chunks of 1 byte", lambda: small_chunks(CHAT)),
    "brackets": Case("a chat message of 4 MB of '<'", lambda: post(CHAT, one_message("<" * SIZE))),
    "control-tokens": Case(
        "a chat message of 4 MB of '<|im_start|>'", lambda: post(CHAT, one_message("<|im_start|>" * (SIZE // 12)))
    ),
    "formats": Case("exponential, deep, huge and recursive formats", lambda: post_each(CHAT, hostile_format, 1)),
    "formats-many": Case("the same on eight connections", lambda: post_each(CHAT, hostile_format)),
    "masks": Case(
        "an answer with expensive masks",
        lambda: post_each(CHAT, expensive_masks(1), 1),
        DEFAULT_MODEL.file,
        control="schema",
    ),
    "masks-many": Case(
        "32 answers with expensive masks",
        lambda: post_each(CHAT, expensive_masks(16), 2),
        DEFAULT_MODEL.file,
        control="schema-many",
    ),
    "schema": Case(
        "an answer with a schema", lambda: post_each(CHAT, endless_array(1), 1), DEFAULT_MODEL.file, is_served=True
    ),
    "schema-many": Case(
        "32 answers with a schema", lambda: post_each(CHAT, endless_array(16), 2), DEFAULT_MODEL.file, is_served=True
    ),
    "checker-killed": Case("formats, and kill -9 of their checking process", lambda: kill_checker(0.5)),
    "bodies": Case(
        "300 bodies of 4 MB at once from another key",
        lambda: post(CHAT, one_message(words(SIZE)), connections=300, headers=AS_FLOOD),
        options=WITH_KEYS,
    ),
    "idempotency": Case(
        "new idempotency keys on eight connections of another key",
        lambda: post_each(
            CHAT,
            lambda number: json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}).encode(),
            make_headers=lambda number: f"{AS_FLOOD}\r\nIdempotency-Key: {number}",
        ),
        options=WITH_KEYS,
        is_served=True,
    ),
    "prompt": Case("a prompt of 4 MB", lambda: post(COMPLETIONS, text_body(words(SIZE)))),
}


def main() -> None:
    """Prepare, wait for the start signal, attack, and print the outcomes."""
    name, port, seconds = sys.argv[1:]
    attack = CASES[name].prepare()
    print("ready", flush=True)
    sys.stdin.readline()
    before = time.process_time()
    outcomes = attack(int(port), time.monotonic() + float(seconds))
    print(json.dumps({"cpu_seconds": time.process_time() - before, "outcomes": outcomes}))


if __name__ == "__main__":
    main()
