"""Load of the live comparisons: interactive requests, and callers that send bulk requests without a pause."""

from __future__ import annotations

import asyncio
import random
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.cli.bench.workloads import WorkloadRequest, prompt_ids
from benchmarks.peers.model import make_model
from benchmarks.serving import Serving
from benchmarks.sse_client import stream
from benchmarks.windows import Window, stolen, stolen_since

SLOTS, CONTEXT = 8, 512
INTERACTIVE = {"prompt": 128, "answer": 32}
BULK = {"prompt": 48, "answer": 96}
MODELS = Path.home() / ".cache/carousel/peers/models"
SHAPE = "llama-12m"  # random weights; every token is a word, so an event is a token
INTERACTIVE_PER_SECOND = 3.0
POLICIES: dict[str, tuple[str, ...]] = {
    "carousel": (),
    "fcfs": ("--scheduling-policy", "orca"),
    "vllm priority": ("--scheduling-policy", "vllm"),
    "sglang priority": ("--scheduling-policy", "sglang"),
    "static": ("--batching", "static", "--scheduling-policy", "orca"),
}


def model() -> str:
    """Return the folder of the model, creating it on the first run."""
    make_model(MODELS / SHAPE, SHAPE)
    return str(MODELS / SHAPE)


def body(kind: str, number: int, prompt: int, answer: int, vocabulary: int) -> dict[str, Any]:
    """Return the body of a unique request, in token IDs."""
    ids = prompt_ids(WorkloadRequest(0.0, prompt, answer), hash((kind == "bulk", number)) & 0xFFFFFFFF, vocabulary)
    return {
        "prompt": ids,
        "max_tokens": answer,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "service_tier": "flex" if kind == "bulk" else "priority",
    }


class Clients:
    """Clients of one server."""

    def __init__(self, server: Serving, vocabulary: int) -> None:
        self.server = server
        self.vocabulary = vocabulary
        self.number = 0
        self.stopping = False

    def counters(self) -> tuple[float, float]:
        """Return the server's counters of busy seconds and of tokens generated for bulk work."""
        with urllib.request.urlopen(f"http://{self.server.host}:{self.server.port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        busy = next(line for line in lines if line.startswith("carousel:busy_seconds_total"))
        bulk = [line for line in lines if line.startswith("vllm:generation_tokens_total") and '"batch"' in line]
        return float(busy.rsplit(" ", 1)[1]), sum(float(line.rsplit(" ", 1)[1]) for line in bulk)

    async def ask(self, kind: str, shape: dict[str, int]) -> list[float]:
        """Send a request and return its send time followed by the arrival times of its tokens."""
        self.number += 1
        request = body(kind, self.number, shape["prompt"], shape["answer"], self.vocabulary)
        began = time.perf_counter()
        moments = await stream(self.server.host, self.server.port, "/v1/completions", request)
        return [began, *moments[: shape["answer"]]]

    async def bulk(self) -> None:
        """Send bulk requests one after another until `stopping` is set."""
        while not self.stopping:
            self.number += 1
            request = body("bulk", self.number, BULK["prompt"], BULK["answer"], self.vocabulary)
            await stream(self.server.host, self.server.port, "/v1/completions", request)

    async def people(self, seconds: float, seed: int) -> list[list[float]]:
        """Send interactive requests for `seconds` and return the times of each, as `ask` does."""
        dice = random.Random(seed)
        tasks, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            tasks.append(asyncio.create_task(self.ask("person", INTERACTIVE)))
            await asyncio.sleep(dice.expovariate(INTERACTIVE_PER_SECOND))
        return await asyncio.gather(*tasks)

    async def window(self, seconds: float, *, people: bool, bulk: int, seed: int) -> Window:
        """Measure `seconds` of interactive requests, of `bulk` callers with bulk work, or of both."""
        self.stopping = False
        callers = [asyncio.create_task(self.bulk()) for _ in range(bulk)]
        if bulk:
            await asyncio.sleep(2.0)  # until every slot is occupied
        before, began, had = await asyncio.to_thread(self.counters), time.perf_counter(), stolen()
        answers: list[list[float]] = []
        if people:
            answers = await self.people(seconds, seed)
        else:
            await asyncio.sleep(seconds)
        lost = stolen_since(had)
        after, took = await asyncio.to_thread(self.counters), time.perf_counter() - began
        self.stopping = True
        await asyncio.gather(*callers)
        busy, tokens = ((now - then) / took for now, then in zip(after, before, strict=True))
        return latencies(answers, lost, busy, tokens)


def latencies(answers: list[list[float]], lost: float, busy: float = 0.0, bulk: float = 0.0) -> Window:
    """Return the window of requests, each given as its send time followed by the arrival times of its tokens."""
    return Window(
        firsts=[a[1] - a[0] for a in answers],
        gaps=[b - a for moments in answers for a, b in pairwise(moments[1:])],
        whole=[a[-1] - a[0] for a in answers],
        stolen=lost,
        busy=busy,
        bulk=bulk,
    )
