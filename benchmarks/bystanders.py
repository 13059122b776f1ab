"""Ordinary clients of a server under attack, in separate processes: chat streams, short and long chats, and a health
check.

`python -m benchmarks.bystanders streams PORT MODEL_FOLDER`, `... chats PORT MODEL_FOLDER` and `... health PORT` run
until their standard input ends. For each input line they print, as JSON, their figures since the previous line.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.hostile_bodies import words
from benchmarks.hostile_clients import CALM_KEY, CHAT, HOST, RESPONSES
from benchmarks.sse_client import Part, receive, run
from benchmarks.tally import percentile

DEMO_STREAMS, STREAMS, TOKENS = 16, 4, 1900  # a real model keeps its target beside fewer streams
EVENT = b"\ndata: "
HEALTH_SECONDS = 0.05  # interval between checks
MAX_HEALTH_SECONDS = 5.0
CHAT_SECONDS = 0.5  # pause after an answer
DEMO_TURNS, TURN_BYTES = 24, 1000  # of the long chat, which is truncated to the context
BYTES = 200  # of the long chat of a real model, which reads it in some seconds beside the streams
FIRST_TOKEN = {CHAT: b'"content":"', RESPONSES: b"event: response.output_text.delta"}


def milliseconds(seconds: list[float]) -> dict[str, float]:
    """Return the number of values and their percentiles in milliseconds; without a value, only the number."""
    if not seconds:
        return {"count": 0}
    return {
        "count": len(seconds),
        "p50": 1000 * statistics.median(seconds),
        "p99": 1000 * percentile(seconds, 0.99),
        "max": 1000 * max(seconds),
    }


def is_demo(model: Path) -> bool:
    """Return whether a model is the demo model, which takes a thousandth of a real one's time."""
    return model.name == "demo"


def without_special_tokens(model: Path) -> dict[str, int]:
    """Return a logit bias that forbids a model's special tokens, which have no text and send no event."""
    added = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    return {str(token["id"]): -100 for token in added if token["special"]}


class Stream:
    """Chat stream that is reopened when it ends; appends the seconds between its tokens to `gaps`."""

    def __init__(self, port: int, number: int, bias: dict[str, int], gaps: list[float], failures: list[str]) -> None:
        self._port, self._number, self._gaps, self._failures = port, number, gaps, failures
        self._bias = bias
        self._tail = b""
        self._last = 0.0  # time of the last token; 0: none yet in this answer

    @property
    def is_running(self) -> bool:
        """Return whether the current answer has begun."""
        return self._last > 0

    @property
    def silence(self) -> float:
        """Return the seconds since the last token of the current answer."""
        return time.perf_counter() - self._last if self._last else 0.0

    async def follow(self) -> None:
        """Read one answer after another."""
        body = {
            "messages": [{"role": "user", "content": f"Tell me story number {self._number}."}],
            "max_tokens": TOKENS,
            "logit_bias": self._bias,
            "ignore_eos": True,
            "temperature": 0.8,
            "seed": self._number,
            "stream": True,
        }
        while True:
            self._tail, self._last = b"", 0.0
            try:
                await receive(HOST, self._port, CHAT, body, self._take, key=CALM_KEY)
            except (OSError, RuntimeError) as error:
                self._failures.append(f"{type(error).__name__}: {error}"[:200])
                await asyncio.sleep(HEALTH_SECONDS)

    def _take(self, part: Part) -> None:
        moment, data = part
        data = self._tail + data
        events = data.count(EVENT)
        self._tail = data[-len(EVENT) + 1 :] if EVENT not in data[-2 * len(EVENT) + 2 :] else b""
        if events:
            self._gaps += [moment - self._last] * bool(self._last) + [0.0] * (events - 1)
            self._last = moment


async def follow_streams(port: int, model: Path) -> None:
    """Keep answers in progress, and report the gaps between their tokens."""
    gaps: list[float] = []
    failures: list[str] = []
    bias = without_special_tokens(model)
    number = DEMO_STREAMS if is_demo(model) else STREAMS
    streams = [Stream(port, index, bias, gaps, failures) for index in range(number)]
    tasks = [asyncio.create_task(stream.follow()) for stream in streams]

    def figures() -> dict[str, Any]:
        longest = max(stream.silence for stream in streams)
        if longest > max(gaps, default=0.0):  # count an unfinished gap as a finished one
            gaps.append(longest)
        found = milliseconds(gaps)
        gaps.clear()
        return {**found, "streams": len(streams), "running": sum(stream.is_running for stream in streams)}

    await report_on_request(figures, failures)
    for task in tasks:
        task.cancel()


def short_chat(number: int) -> tuple[str, dict[str, Any]]:
    """Return path and body of a short question."""
    return CHAT, {"messages": [{"role": "user", "content": f"Hi {number}"}]}


def long_chat(number: int, model: Path) -> tuple[str, dict[str, Any]]:
    """Return path and body of a question at the end of a long conversation."""
    roles = ("user", "assistant")
    length, size = (DEMO_TURNS, TURN_BYTES) if is_demo(model) else (1, BYTES)
    turns = [{"role": roles[turn % 2], "content": f"{number} {words(size)}"} for turn in range(length)]
    return RESPONSES, {"input": [*turns, {"role": "user", "content": "Hi"}], "truncation": "auto"}


async def first_token(port: int, path: str, body: dict[str, Any]) -> float:
    """Return the seconds to the first token of a streamed answer."""
    began, arrived, data = time.perf_counter(), 0.0, b""

    def take(part: Part) -> None:
        nonlocal arrived, data
        data += part[1]
        if not arrived and FIRST_TOKEN[path] in data:
            arrived = part[0]

    await receive(HOST, port, path, body | {"stream": True}, take, key=CALM_KEY)
    return (arrived or time.perf_counter()) - began


class Retry:
    """Question that is asked again and again under one idempotency key, and must be answered once only."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._was_asked = False

    async def ask(self) -> None:
        """Ask. Raises `RuntimeError` if the question was asked before and is answered anew."""
        path, body = short_chat(0)
        received = bytearray()
        fields = {"stream": True, "max_tokens": 1}

        def take(part: Part) -> None:
            received.extend(part[1])

        await receive(HOST, self._port, path, body | fields, take, key=CALM_KEY, idempotency_key="first")
        was_repeated = b"idempotent-replayed: true" in received.partition(b"\r\n\r\n")[0].lower()
        if self._was_asked and not was_repeated:
            raise RuntimeError("A repeated request ran again.")
        self._was_asked = True


async def follow_chats(port: int, model: Path) -> None:
    """Ask short and long questions, one after another, and report the times to their first tokens."""
    times: dict[str, list[float]] = {"short": [], "long": []}
    began: dict[str, float] = {}
    failures: list[str] = []
    bias = without_special_tokens(model)
    retry = Retry(port)

    async def ask(kind: str) -> None:
        for number in count():
            path, body = short_chat(number) if kind == "short" else long_chat(number, model)
            limit = {"max_tokens": 4, "logit_bias": bias} if path == CHAT else {"max_output_tokens": 16}
            began[kind] = time.perf_counter()
            try:
                times[kind].append(await first_token(port, path, body | limit))
                if kind == "short":
                    await retry.ask()
            except (OSError, RuntimeError) as error:
                failures.append(f"{type(error).__name__}: {error}"[:200])
            del began[kind]
            await asyncio.sleep(CHAT_SECONDS)

    def figures() -> dict[str, Any]:
        for kind, moment in began.items():  # count an unanswered question as an answered one
            times[kind].append(time.perf_counter() - moment)
        found = {kind: milliseconds(seconds) for kind, seconds in times.items()}
        for seconds in times.values():
            seconds.clear()
        return found

    tasks = [asyncio.create_task(ask(kind)) for kind in times]
    await report_on_request(figures, failures)
    for task in tasks:
        task.cancel()


async def report_on_request(figures: Callable[[], dict[str, Any]], failures: list[str]) -> None:
    """Print figures and failures as JSON for each line of standard input, until it ends."""
    ended = asyncio.Event()

    def report() -> None:
        if not sys.stdin.readline():
            ended.set()
            return
        print(json.dumps({**figures(), "failures": failures}), flush=True)
        failures.clear()

    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), report)
    await ended.wait()


def check_health(port: int) -> float:
    """Return the seconds that GET /health takes on a new connection. Raises `OSError` for any status but 200."""
    began = time.perf_counter()
    with socket.create_connection((HOST, port), MAX_HEALTH_SECONDS) as connection:
        connection.sendall(f"GET /health HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while data := connection.recv(1 << 16):
            answer += data
    if not answer.startswith(b"HTTP/1.1 200"):
        raise OSError(answer[:200].decode(errors="replace"))
    return time.perf_counter() - began


def poll_health(port: int) -> None:
    """Check the health at a fixed rate, and report the latency of each check from its due time."""
    times: list[float] = []
    failures: list[str] = []
    lock = threading.Lock()

    def report() -> None:
        while sys.stdin.readline():
            with lock:
                print(json.dumps({**milliseconds(times), "failures": failures}), flush=True)
                times.clear()
                failures.clear()

    reporter = threading.Thread(target=report)
    reporter.start()
    due = time.perf_counter()
    while reporter.is_alive():
        time.sleep(max(0.0, due - time.perf_counter()))
        late = max(0.0, time.perf_counter() - due)
        try:
            seconds = late + check_health(port)
        except OSError as error:
            with lock:
                failures.append(f"{type(error).__name__}: {error}"[:200])
        else:
            with lock:
                times.append(seconds)
        due += HEALTH_SECONDS


def main() -> None:
    """Run until standard input ends."""
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == "streams":
        run(follow_streams(port, Path(sys.argv[3])))
    elif kind == "chats":
        run(follow_chats(port, Path(sys.argv[3])))
    else:
        poll_health(port)


if __name__ == "__main__":
    main()
