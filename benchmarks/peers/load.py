"""Load of the peers and its figures: prompts and lengths from fixed seeds, streams over HTTP, and their evaluation."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.model import BYTES
from benchmarks.sse_client import Part, receive, run

PROMPT, SHORTEST, LONGEST = 64, 32, 96
TIMEOUT = 900.0  # seconds for one measured run


@dataclass(frozen=True)
class Load:
    """Streams that start together. Prompts differ between runs, so that no prefix cache helps; lengths are the same."""

    streams: int
    run: int
    vocabulary: int
    prompt: int = PROMPT  # tokens

    @property
    def prompts(self) -> list[list[int]]:
        """Return the token IDs of each prompt, without byte tokens, see model.py."""
        chance = random.Random(f"{self.run} {self.streams}")
        return [[chance.randrange(BYTES, self.vocabulary) for _ in range(length)] for length in self.prompt_lengths]

    @property
    def prompt_lengths(self) -> list[int]:
        """Return the prompt tokens of each stream."""
        return [self.prompt] * self.streams

    @property
    def starts(self) -> list[float]:
        """Return the send time of each request, in seconds after the start of the run."""
        return [0.0] * len(self.lengths)

    @property
    def clients(self) -> int | None:
        """Return the maximum number of requests in flight; None: no limit."""
        return None

    @property
    def lengths(self) -> list[int]:
        """Return the output tokens of each stream."""
        return [random.Random(stream).randint(SHORTEST, LONGEST) for stream in range(self.streams)]


@dataclass(frozen=True)
class Stream:
    """One answer: arrival times (seconds after the start) of its events with text, and its number of tokens.

    ended: arrival of its last event. The last tokens of a real model may have no text.
    """

    moments: list[float]
    ended: float
    tokens: int
    words: list[str]
    sent: float = 0.0  # seconds after the start


def figures(streams: list[Stream]) -> dict[str, Any]:
    """Return tokens per second until the last event, and latencies in milliseconds. Gaps are between events."""
    tokens = sum(stream.tokens for stream in streams)
    gaps = sorted(b - a for s in streams for a, b in zip(s.moments, s.moments[1:], strict=False))
    first = sorted(stream.moments[0] - stream.sent for stream in streams if stream.moments)
    return {
        "tokens_per_s": tokens / max(stream.ended for stream in streams),
        "tokens": tokens,
        "tokens_per_event": tokens / sum(len(stream.moments) for stream in streams),
        "requests_per_s": len(streams) / max(stream.ended for stream in streams),
        "ttft_p50_ms": 1000 * statistics.median(first),
        "ttft_p99_ms": 1000 * first[int(0.99 * (len(first) - 1))],
        "itl_p50_ms": 1000 * statistics.median(gaps),
        "itl_p99_ms": 1000 * gaps[int(0.99 * (len(gaps) - 1))],
        "largest_gap_ms": 1000 * gaps[-1],
    }


def over_http(
    port: int, bodies: list[dict[str, Any]], starts: list[float] | None = None, clients: int | None = None
) -> list[Stream]:
    """POST bodies to /v1/completions and return the answers.

    starts: send times in seconds after the beginning; by default all at once. clients: maximum number in flight.
    Raises `RuntimeError` for an answer of unexpected length.
    """

    async def one(body: dict[str, Any], start: float, gate: asyncio.Semaphore) -> tuple[float, list[Part]]:
        if start:
            await asyncio.sleep(began + start - time.perf_counter())
        async with gate:
            sent = time.perf_counter() - began if start or clients else 0.0
            return sent, await _receive(port, body)

    async def all_of_them() -> list[tuple[float, list[Part]]]:
        gate = asyncio.Semaphore(clients or len(bodies))
        times = starts or [0.0] * len(bodies)
        async with asyncio.timeout(TIMEOUT):
            return await asyncio.gather(*(one(*pair, gate) for pair in zip(bodies, times, strict=True)))

    began = time.perf_counter()
    received = run(all_of_them())
    # Parse only now, because the client shares the machine with the measured server.
    answers = [_read(parts, began, sent) for sent, parts in received]
    for body, answer in zip(bodies, answers, strict=True):
        if answer.tokens != body["max_tokens"]:
            raise RuntimeError(f"an answer had {answer.tokens} tokens instead of {body['max_tokens']}")
    return answers


async def _receive(port: int, body: dict[str, Any]) -> list[Part]:
    parts: list[Part] = []
    await receive("127.0.0.1", port, "/v1/completions", body, parts.append)
    return parts


def _read(parts: list[Part], began: float, sent: float) -> Stream:
    """Parse an answer. Tokens are taken from the usage block, because an event may carry several."""
    moments: list[float] = []
    pieces: list[str] = []
    tokens, ended = -1, 0.0
    for moment, event in events(parts):
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        text = "".join(choice.get("text") or "" for choice in event["choices"])
        if text:
            moments.append(moment - began)
            pieces.append(text)
        if usage := event.get("usage"):
            tokens = usage["completion_tokens"]
        ended = moment - began
    return Stream(moments, ended, tokens, "".join(pieces).split(), sent)


def events(parts: list[Part]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield each event with the time at which its line was complete. HTTP chunk framing is on other lines."""
    rest = b""
    for moment, data in parts:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                yield moment, json.loads(line[6:])
