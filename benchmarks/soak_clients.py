"""Clients of the soak test in a separate process: bystanders, disconnecting clients, and watchers of the engine.

`python -m benchmarks.soak_clients PORT SEED REQUESTS` sends that many requests to the undisturbed server, prints
"ready", waits for a line on standard input, and runs its clients until standard input ends. For each further line it
prints its figures so far as JSON.

- 12 bystanders over SSE and 4 over /v1/realtime send one request after another. An answer that differs from the one of
  the undisturbed server, an error, a missing end and a refusal are failures.
- Disconnecting clients close their connection in the middle of an answer (FIN or RST) or before its head, resume it
  with `Last-Event-ID`, or cancel it by DELETE. A resumed answer is compared like a bystander's.
- Watchers follow /v1/engine/events for some seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from benchmarks.hostile_clients import HOST, RECEIVE_BYTES, post_head
from benchmarks.soak_requests import (
    DONE,
    MAX_ANSWER_SECONDS,
    Answer,
    BadAnswer,
    SoakRequest,
    answer_of,
    ask_realtime,
    ask_sse,
    events_of,
    realtime_asks,
    sse_asks,
)
from benchmarks.sse_client import run

SSE_BYSTANDERS, REALTIME_BYSTANDERS, LEAVERS, WATCHERS = 12, 4, 6, 2
MAX_PAUSE_SECONDS = 0.5  # between two requests of a client
MAX_ABSENCE_SECONDS = 4.0  # before a client resumes
RESUME_SECONDS = 60  # requested time for which the server continues without the client
MIN_WATCH_SECONDS, MAX_WATCH_SECONDS = 0.2, 10.0
ANSWERS_PER_SOCKET = 10  # of a realtime bystander
MAX_EXAMPLES = 20  # recorded failures in total
DETAIL_CHARACTERS = 600

Client = Callable[[random.Random], Coroutine[Any, Any, None]]


class Record:
    """Counts of all clients, and examples of failures."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.examples: list[dict[str, object]] = []
        self.left: Counter[str] = Counter()
        self.slowest_seconds = 0.0

    def fail(self, client: str, request: str, kind: str, detail: str) -> None:
        """Count a failure."""
        self.failures[f"{client}: {kind}"] += 1
        if len(self.examples) < MAX_EXAMPLES:
            example = {"at": time.time(), "client": client, "request": request, "kind": kind}
            self.examples.append(example | {"detail": detail[:DETAIL_CHARACTERS]})

    async def judge(self, client: str, ask: SoakRequest, answering: Awaitable[Answer], expected: Answer) -> None:
        """Count an answer, as a failure unless it is the expected one."""
        began = time.monotonic()
        self.answers[client] += 1
        try:
            answer = await answering
        except BadAnswer as error:
            self.fail(client, ask.name, error.kind, error.detail)
        except TimeoutError:
            self.fail(client, ask.name, f"no end in {MAX_ANSWER_SECONDS:.0f} s", "")
        except (OSError, WebSocketException) as error:
            self.fail(client, ask.name, type(error).__name__, str(error))
        else:
            self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
            if answer != expected:
                self.fail(client, ask.name, "changed", difference(answer, expected))

    def figures(self) -> dict[str, object]:
        """Return all counts and examples, for JSON."""
        return {
            "answers": self.answers,
            "failures": self.failures,
            "examples": self.examples,
            "left": self.left,
            "slowest_seconds": self.slowest_seconds,
        }


def difference(answer: Answer, expected: Answer) -> str:
    """Return a description of the first difference between two answers."""
    for index, text in expected.texts.items():
        other = answer.texts.get(index, "")
        if other != text:
            at = next(
                (n for n, (a, b) in enumerate(zip(other, text, strict=False)) if a != b), min(len(other), len(text))
            )
            here = slice(max(0, at - 20), at + 40)
            return f"choice {index} from character {at} of {len(text)}: {other[here]!r} instead of {text[here]!r}"
    return (
        f"{answer.finishes} instead of {expected.finishes}; "
        f"choices {list(answer.texts)} instead of {list(expected.texts)}"
    )


class Clients:
    """All clients of one server, with the answers of the undisturbed server."""

    def __init__(self, port: int, requests: int) -> None:
        self._port = port
        self._sse, self._realtime = sse_asks(requests), realtime_asks(max(1, requests // 4))
        self._expected: dict[str, Answer] = {}
        self.record = Record()

    async def learn(self) -> None:
        """Request every expected answer, one after another. Raises as `ask_sse` and `ask_realtime` do."""
        for ask in self._sse:
            self._expected[ask.name] = await ask_sse(self._port, ask)
        for ask in self._realtime:
            async with self._open_realtime() as websocket:
                await websocket.recv()  # session.created
                self._expected[ask.name] = await ask_realtime(websocket, ask)

    def all(self) -> list[Client]:
        """Return the clients, which run until they are cancelled."""
        return [
            *SSE_BYSTANDERS * [self.bystand_sse],
            *REALTIME_BYSTANDERS * [self.bystand_realtime],
            *LEAVERS * [self.leave],
            *WATCHERS * [self.watch],
        ]

    async def bystand_sse(self, chance: random.Random) -> None:
        """Request one streamed answer after another."""
        while True:
            ask = chance.choice(self._sse)
            await self.record.judge("sse", ask, ask_sse(self._port, ask), self._expected[ask.name])
            await asyncio.sleep(chance.uniform(0, MAX_PAUSE_SECONDS))

    async def bystand_realtime(self, chance: random.Random) -> None:
        """Request one response after another, several on each WebSocket."""
        while True:
            try:
                async with self._open_realtime() as websocket:
                    await websocket.recv()  # session.created
                    for _ in range(ANSWERS_PER_SOCKET):
                        ask = chance.choice(self._realtime)
                        failed = self.record.failures.total()
                        await self.record.judge("realtime", ask, ask_realtime(websocket, ask), self._expected[ask.name])
                        if self.record.failures.total() > failed:
                            break
                        await asyncio.sleep(chance.uniform(0, MAX_PAUSE_SECONDS))
            except (OSError, WebSocketException) as error:  # TimeoutError of the handshake is an OSError
                self.record.fail("realtime", "handshake", type(error).__name__, str(error))
                await asyncio.sleep(MAX_PAUSE_SECONDS)

    async def leave(self, chance: random.Random) -> None:
        """Start one request after another, and disconnect in a random way."""
        ways = (self._vanish, self._vanish_before_head, self._vanish_from_socket, self._resume, self._cancel)
        while True:
            try:
                async with asyncio.timeout(MAX_ANSWER_SECONDS):
                    await chance.choice(ways)(chance)
            except TimeoutError:
                self.record.fail("leaver", "", f"no end in {MAX_ANSWER_SECONDS:.0f} s", "")
            except BadAnswer as error:
                self.record.fail("leaver", "", error.kind, error.detail)
            except (OSError, WebSocketException) as error:
                self.record.fail("leaver", "", type(error).__name__, str(error))
            await asyncio.sleep(chance.uniform(0, MAX_PAUSE_SECONDS))

    async def watch(self, chance: random.Random) -> None:
        """Follow the engine's events for a while, repeatedly."""
        request = f"GET /v1/engine/events HTTP/1.1\r\nHost: {HOST}:{self._port}\r\n\r\n".encode()
        while True:
            raw = b""
            try:
                reader, writer = await self._connect(request)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(chance.uniform(MIN_WATCH_SECONDS, MAX_WATCH_SECONDS)):
                        while data := await reader.read(RECEIVE_BYTES):
                            raw = data
                        self.record.fail("watcher", "/v1/engine/events", "ended", raw.decode(errors="replace"))
                close(writer, abort=chance.random() < 0.5)
                self.record.left["watcher"] += 1
            except OSError as error:
                self.record.fail("watcher", "/v1/engine/events", type(error).__name__, str(error))
            await asyncio.sleep(chance.uniform(0, MAX_PAUSE_SECONDS))

    # Ways to disconnect -------------------------------------------------------------------------------------------

    async def _vanish(self, chance: random.Random) -> None:
        reader, writer = await self._begin(chance.choice(self._sse))
        await read_some(reader, chance)
        abort = chance.random() < 0.5
        close(writer, abort)
        self.record.left["RST" if abort else "FIN"] += 1

    async def _vanish_before_head(self, chance: random.Random) -> None:
        _, writer = await self._begin(chance.choice(self._sse))
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.001, 0.005)))
        close(writer, abort=chance.random() < 0.5)
        self.record.left["before the head"] += 1

    async def _vanish_from_socket(self, chance: random.Random) -> None:
        websocket = await self._open_realtime()
        await websocket.recv()  # session.created
        await websocket.send(json.dumps(chance.choice(self._realtime).body))
        for _ in range(chance.randrange(20)):
            if json.loads(await websocket.recv())["type"] == "response.done":
                break
        websocket.transport.abort()
        self.record.left["realtime"] += 1

    async def _resume(self, chance: random.Random) -> None:
        ask = chance.choice(self._sse)
        await self.record.judge("resumed", ask, self._ask_twice(ask, chance), self._expected[ask.name])

    async def _ask_twice(self, ask: SoakRequest, chance: random.Random) -> Answer:
        reader, writer = await self._begin(ask, f"X-Carousel-Resume: {RESUME_SECONDS}\r\n")
        raw = await read_some(reader, chance)
        close(writer, abort=chance.random() < 0.5)
        events, name = events_of(raw), stream_id_of(raw)
        if events and events[-1][1] == DONE:
            return answer_of(data for _, data in events)
        await asyncio.sleep(chance.uniform(0, MAX_ABSENCE_SECONDS))
        cursor = f"Last-Event-ID: {events[-1][0]}\r\n" if events and events[-1][0] else ""
        rest = await self._ask("GET", f"/v1/streams/{name}", cursor)
        if not rest.startswith((b"HTTP/1.1 200", b"HTTP/1.1 204")):
            raise BadAnswer("not resumed", rest.decode(errors="replace"))
        return answer_of(data for _, data in [*events, *events_of(rest)])

    async def _cancel(self, chance: random.Random) -> None:
        ask = chance.choice(self._sse)
        reader, writer = await self._begin(ask, f"X-Carousel-Resume: {RESUME_SECONDS}\r\n")
        raw = await read_some(reader, chance)
        reply = await self._ask("DELETE", f"/v1/streams/{stream_id_of(raw)}")
        while data := await reader.read(RECEIVE_BYTES):
            raw += data
        close(writer)
        self.record.left["DELETE"] += 1
        if not reply.startswith(b"HTTP/1.1 204"):
            self.record.fail("leaver", ask.name, "not cancelled", reply.decode(errors="replace"))
        try:
            answer_of(data for _, data in events_of(raw))
        except BadAnswer as error:
            self.record.fail("leaver", ask.name, f"cancelled, {error.kind}", error.detail)

    # Connections --------------------------------------------------------------------------------------------------

    def _open_realtime(self) -> connect:
        return connect(f"ws://{HOST}:{self._port}/v1/realtime", open_timeout=MAX_ANSWER_SECONDS, ping_interval=None)

    async def _connect(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        writer.write(request)
        return reader, writer

    async def _begin(self, ask: SoakRequest, headers: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        body = json.dumps(ask.body).encode()
        return await self._connect(post_head(self._port, ask.path, f"{headers}Content-Length: {len(body)}") + body)

    async def _ask(self, method: str, path: str, headers: str = "") -> bytes:
        """Return the whole response to a request without a body."""
        request = (
            f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{self._port}\r\n{headers}Connection: close\r\n\r\n".encode()
        )
        reader, writer = await self._connect(request)
        response = await reader.read()
        close(writer)
        return response


def close(writer: asyncio.StreamWriter, abort: bool = False) -> None:
    """Close a connection. abort: send RST instead of FIN."""
    if abort:
        options = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, options)
        writer.transport.abort()
    else:
        writer.close()


async def read_some(reader: asyncio.StreamReader, chance: random.Random) -> bytes:
    """Return the head of a response and a random part of its body, or all of it if it is shorter."""
    raw = b""
    size = chance.choice((1, 500, 3000, 20_000))
    while b"\r\n\r\n" not in raw or len(raw) < size:
        data = await reader.read(RECEIVE_BYTES)
        if not data:
            break
        raw += data
    return raw


def stream_id_of(raw: bytes) -> str:
    """Return the ID of the stream in the head of a response. Raises `BadAnswer`."""
    if not (found := re.search(rb"(?i)\r\nx-carousel-stream: *(\S+)", raw)):
        raise BadAnswer("no stream", raw[:DETAIL_CHARACTERS].decode(errors="replace"))
    return found[1].decode()


async def play(port: int, seed: int, requests: int) -> None:
    """Request the expected answers, run the clients, and report for each input line."""
    clients = Clients(port, requests)
    await clients.learn()
    print("ready", flush=True)
    ended = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    def answer_line() -> None:
        if not sys.stdin.readline():
            ended.set()
        elif tasks:
            print(json.dumps(clients.record.figures()), flush=True)
        else:
            for number, client in enumerate(clients.all()):
                work = client(random.Random(f"{seed} {number}"))
                tasks.append(asyncio.create_task(work))
                tasks[-1].add_done_callback(lambda _: ended.set())  # no client ends before it is cancelled

    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), answer_line)
    await ended.wait()
    for task in tasks:
        task.cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(found, asyncio.CancelledError):
            raise RuntimeError("A client of the soak test ended unexpectedly.") from found


def main() -> None:
    """Run until standard input ends."""
    port, seed, requests = map(int, sys.argv[1:])
    run(play(port, seed, requests))


if __name__ == "__main__":
    main()
