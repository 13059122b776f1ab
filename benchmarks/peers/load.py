"""The load and its figures: prompts and lengths from fixed seeds, streams over HTTP, and what is read off them."""

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
    """Streams that start together. Prompts differ from run to run, so that no prefix cache can help; lengths do not."""

    streams: int
    run: int
    vocabulary: int
    prompt: int = PROMPT  # tokens

    @property
    def prompts(self) -> list[list[int]]:
        """Token ids; bytes are left out, see model.py."""
        chance = random.Random(f"{self.run} {self.streams}")
        return [[chance.randrange(BYTES, self.vocabulary) for _ in range(self.prompt)] for _ in range(self.streams)]

    @property
    def lengths(self) -> list[int]:
        """Output tokens of each stream."""
        return [random.Random(stream).randint(SHORTEST, LONGEST) for stream in range(self.streams)]


@dataclass(frozen=True)
class Stream:
    """One answer: the moments (seconds after the start) of its events with text, and how many tokens they carried."""

    moments: list[float]
    tokens: int
    words: list[str]


def figures(streams: list[Stream]) -> dict[str, Any]:
    """Tokens a second until the last token, and latencies in milliseconds. A gap lies between two events."""
    tokens = sum(stream.tokens for stream in streams)
    gaps = sorted(b - a for s in streams for a, b in zip(s.moments, s.moments[1:], strict=False))
    return {
        "tokens_per_s": tokens / max(stream.moments[-1] for stream in streams),
        "tokens": tokens,
        "tokens_per_event": tokens / sum(len(stream.moments) for stream in streams),
        "ttft_p50_ms": 1000 * statistics.median(stream.moments[0] for stream in streams),
        "itl_p50_ms": 1000 * statistics.median(gaps),
        "itl_p99_ms": 1000 * gaps[int(0.99 * (len(gaps) - 1))],
        "largest_gap_ms": 1000 * gaps[-1],
    }


def over_http(port: int, bodies: list[dict[str, Any]]) -> list[Stream]:
    """POST all bodies to /v1/completions at once. Raises `RuntimeError` for an answer of another length."""

    async def all_of_them() -> list[list[Part]]:
        async with asyncio.timeout(TIMEOUT):
            return await asyncio.gather(*(_receive(port, body) for body in bodies))

    began = time.perf_counter()
    received = run(all_of_them())
    # Read only now, as the client shares the machine with what it measures.
    answers = [_read(parts, began) for parts in received]
    for body, answer in zip(bodies, answers, strict=True):
        if answer.tokens != body["max_tokens"]:
            raise RuntimeError(f"{answer.tokens} tokens came instead of {body['max_tokens']}")
    return answers


async def _receive(port: int, body: dict[str, Any]) -> list[Part]:
    parts: list[Part] = []
    await receive("127.0.0.1", port, "/v1/completions", body, parts.append)
    return parts


def _read(parts: list[Part], began: float) -> Stream:
    """Tokens are as the usage block has them, since an event may carry several."""
    moments: list[float] = []
    pieces: list[str] = []
    tokens = -1
    for moment, event in _events(parts):
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        text = "".join(choice.get("text") or "" for choice in event["choices"])
        if text:
            moments.append(moment - began)
            pieces.append(text)
        if usage := event.get("usage"):
            tokens = usage["completion_tokens"]
    return Stream(moments, tokens, "".join(pieces).split())


def _events(parts: list[Part]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Each event with the moment at which its line was complete. What frames HTTP's chunks stands on other lines."""
    rest = b""
    for moment, data in parts:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                yield moment, json.loads(line[6:])
