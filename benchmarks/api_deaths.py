"""Effect on clients of killing the API process (kill -9) of a server with `--store`.

32 clients follow chats, completions, messages and responses, plain and with formats, and resume them as a careful
client does: with the cursor of the last event, or, if no answer had begun, with the same idempotency key. Once per
round the API process is killed at a random point, with which the engine ends, and another server is started with the
same store and port. Each answer is compared with the answer to the same request without a kill.

    python -m benchmarks.api_deaths
    python -m benchmarks.api_deaths --kills 10
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import socket
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from benchmarks.results import save, spread
from benchmarks.serving import Serving

STREAMS, SLOTS, TOKENS = 32, 16, 200
RETRY_SECONDS = 0.05  # pause of a client whose server is gone
MAX_SECONDS = 120.0  # for an answer
CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 40, "maxItems": 60}
FORMAT = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": NUMBERS}}


def request(number: int) -> tuple[str, dict[str, Any]]:
    """Return path and body of a client's request."""
    question = [{"role": "user", "content": f"Tell me story number {number}."}]
    sampled = {"temperature": 0.8, "seed": number, "stream": True}
    match number % 5:
        case 0:
            return CHAT, {"messages": question, "max_tokens": TOKENS, "ignore_eos": True, **sampled}
        case 1:
            return COMPLETIONS, {"prompt": f"Story {number}", "max_tokens": TOKENS, "ignore_eos": True, **sampled}
        case 2:
            return MESSAGES, {
                "model": "demo",
                "messages": question,
                "max_tokens": TOKENS,
                "temperature": 0,
                "stream": True,
            }
        case 3:
            return RESPONSES, {"input": question, "max_output_tokens": TOKENS, **sampled}
    return CHAT, {"messages": question, "max_tokens": TOKENS, "response_format": FORMAT, **sampled}


@dataclass
class Answer:
    """One client with its answer."""

    number: int
    events: list[dict[str, Any]] = field(default_factory=list)
    cursors: list[int] = field(default_factory=list)  # numbers of records or events, in order of arrival
    moments: list[float] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)  # ids of the streams that it was given: one, unless it ran twice
    is_whole: bool = False
    failure: str = ""
    _cursor: str = ""

    @property
    def text(self) -> str:
        """Return the text of all events."""
        return "".join(_text(event) for event in self.events)

    @property
    def longest_silence(self) -> float:
        """Return the largest gap between arrivals, in seconds."""
        return max((after - before for before, after in pairwise(self.moments)), default=0.0)

    async def follow(self, url: str) -> None:
        """Read the answer to its end, through any number of servers."""
        key, end = secrets.token_hex(8), time.monotonic() + MAX_SECONDS
        async with httpx.AsyncClient(base_url=url, timeout=MAX_SECONDS) as http:
            while not (self.is_whole or self.failure) and time.monotonic() < end:
                try:
                    async with http.stream(**self._next(key)) as response:
                        await self._read(response)
                except httpx.TransportError:
                    await asyncio.sleep(RETRY_SECONDS)
        if not self.is_whole and not self.failure:
            self.failure = "it has not ended in time"

    def _next(self, key: str) -> dict[str, Any]:
        """Return the request that begins the answer, or continues it."""
        path, body = request(self.number)
        if not self.events:
            headers = {"X-Carousel-Resume": "120", "Idempotency-Key": key}
            return {"method": "POST", "url": path, "json": body, "headers": headers}
        (stream,) = self.streams
        if path == RESPONSES:
            query = {"stream": "true", "starting_after": str(self.cursors[-1])}
            return {"method": "GET", "url": f"{RESPONSES}/resp_{stream}", "params": query}
        return {"method": "GET", "url": f"/v1/streams/{stream}", "headers": {"Last-Event-ID": self._cursor}}

    async def _read(self, response: httpx.Response) -> None:
        if response.status_code == 503:  # the next server restores its answers
            await response.aread()
            await asyncio.sleep(RETRY_SECONDS)
            return
        if response.status_code != 200:
            self.failure = f"{response.status_code} {(await response.aread()).decode()[:200]}"
            return
        self.streams.add(response.headers["X-Carousel-Stream"])
        pending: list[dict[str, Any]] = []  # events of a record whose position has not arrived
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                self._cursor = line[4:]
                self.cursors.append(int(line.rpartition(".")[2]))
            elif line.startswith("data: "):
                self.moments.append(time.perf_counter())
                self._take(line[6:], pending)
            elif not line and self._is_placed(pending):
                self.events += pending
                pending.clear()

    def _take(self, data: str, pending: list[dict[str, Any]]) -> None:
        if data == "[DONE]":
            self.is_whole = True
            return
        event = json.loads(data)
        kind = event.get("type", "")
        if "error" in event or kind in ("error", "response.failed"):
            self.failure = data[:200]
        self.is_whole = self.is_whole or kind in ("message_stop", "response.completed", "response.incomplete")
        if "sequence_number" in event:
            self.cursors.append(event["sequence_number"])
        if kind != "ping":
            pending.append(event)

    def _is_placed(self, pending: list[dict[str, Any]]) -> bool:
        """Return whether the events so far are not sent again after the cursor. In Messages the last event of a record
        has the position of all of them.
        """
        is_messages = self.number % 5 == 2
        return not is_messages or self.is_whole or bool(pending and pending[-1].get("type") == "content_block_delta")


def _text(event: dict[str, Any]) -> str:
    """Return the text of an event of any protocol."""
    if "choices" in event:
        return "".join(
            choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in event["choices"]
        )
    delta = event.get("delta", "")
    if isinstance(delta, dict):
        return str(delta.get("text", ""))
    return str(delta) if event.get("type") == "response.output_text.delta" else ""


async def play(url: str, kill: tuple[Servers, float] | None) -> list[Answer]:
    """Run all clients at once; kill the server once that many events have arrived in all, and start another one."""
    answers = [Answer(number) for number in range(STREAMS)]
    reading = [asyncio.create_task(answer.follow(url)) for answer in answers]
    if kill is not None:
        servers, events = kill
        while not all(task.done() for task in reading):
            if sum(len(answer.moments) for answer in answers) >= events:
                break
            await asyncio.sleep(0.001)
        servers.kill()
        await asyncio.to_thread(servers.start)
    await asyncio.gather(*reading)
    return answers


class Servers:
    """Servers with one store and port, one after another. A context manager."""

    def __init__(self, store: Path) -> None:
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = ("--store", str(store), "--max-num-seqs", str(SLOTS), "--max-model-len", "512")
        self._make = lambda: Serving(*options, "--served-model-name", "demo", port=port)
        self.current = self._make()

    def __enter__(self) -> Servers:
        self.current.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.current.__exit__(None, None, None)

    def kill(self) -> None:
        """Kill the API process."""
        self.current.process.kill()
        self.current.__exit__(None, None, None)

    def start(self) -> None:
        """Start another server."""
        self.current = self._make()
        self.current.__enter__()


def row_of(answers: list[Answer], expected: list[str]) -> dict[str, Any]:
    """Return the figures of a round."""
    return {
        "failed": sum(not answer.is_whole for answer in answers),
        "changed": sum(a.is_whole and a.text != text for a, text in zip(answers, expected, strict=True)),
        "out_of_order": sum(answer.cursors != sorted(set(answer.cursors)) for answer in answers),
        "ran_twice": sum(len(answer.streams) > 1 for answer in answers),
        "silence": max(answer.longest_silence for answer in answers),
        "failures": [answer.failure for answer in answers if answer.failure][:3],
    }


async def measure(servers: Servers, kills: int) -> list[dict[str, Any]]:
    """Return a row for each kill."""
    url = servers.current.url
    await play(url, None)
    undisturbed = await play(url, None)
    expected = [answer.text for answer in undisturbed]
    total = sum(len(answer.moments) for answer in undisturbed)
    chance, rows = random.Random(1), []
    for kill in range(kills):
        share = 0.95 * chance.random()
        row = {"killed_after": share, **row_of(await play(url, (servers, share * total)), expected)}
        rows.append(row)
        print(f"kill {kill}: {json.dumps(row)}", flush=True)
    return rows


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Servers(Path(folder) / "store.db") as servers:
        rows = asyncio.run(measure(servers, options.kills))
    summary: dict[str, Any] = {"answers": STREAMS * len(rows)}
    summary |= {name: sum(row[name] for row in rows) for name in ("failed", "changed", "out_of_order", "ran_twice")}
    summary["silence_seconds"] = spread([row["silence"] for row in rows])
    print(json.dumps(summary, indent=1))
    print("Saved to", save("api_deaths", {"streams": STREAMS, "slots": SLOTS, "tokens": TOKENS}, rows, summary))


if __name__ == "__main__":
    main()
