"""What the live comparisons ask of a server: people, and callers of bulk work who never stop."""

from __future__ import annotations

import asyncio
import random
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.bench.workloads import Asked, prompt_ids
from benchmarks.peers.model import make_model
from benchmarks.serving import Serving
from benchmarks.sse_client import stream
from benchmarks.windows import Window, stolen, stolen_since

SLOTS, CONTEXT = 8, 512
PERSON = {"prompt": 128, "answer": 32}
BULK = {"prompt": 48, "answer": 96}
MODELS = Path.home() / ".cache/carousel/peers/models"
SHAPE = "llama-12m"  # random weights, every token of which is a word: an event is a token
PEOPLE_PER_SECOND = 3.0
POLICIES: dict[str, tuple[str, ...]] = {
    "carousel": (),
    "fcfs": ("--scheduling-policy", "orca"),
    "vllm priority": ("--scheduling-policy", "vllm"),
    "sglang priority": ("--scheduling-policy", "sglang"),
    "static": ("--batching", "static", "--scheduling-policy", "orca"),
}


def model() -> str:
    """The folder of the model, made by the first run."""
    make_model(MODELS / SHAPE, SHAPE)
    return str(MODELS / SHAPE)


def body(kind: str, number: int, prompt: int, answer: int, vocabulary: int) -> dict[str, Any]:
    """A request that nobody else makes, in token ids."""
    ids = prompt_ids(Asked(0.0, prompt, answer), hash((kind == "bulk", number)) & 0xFFFFFFFF, vocabulary)
    return {
        "prompt": ids,
        "max_tokens": answer,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "service_tier": "flex" if kind == "bulk" else "priority",
    }


class Clients:
    """One server and its clients."""

    def __init__(self, server: Serving, vocabulary: int) -> None:
        self.server = server
        self.vocabulary = vocabulary
        self.number = 0
        self.stopping = False

    def books(self) -> tuple[float, float]:
        """Busy seconds, and tokens generated for bulk work, as the server counts them."""
        with urllib.request.urlopen(f"http://{self.server.host}:{self.server.port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        busy = next(line for line in lines if line.startswith("carousel:busy_seconds_total"))
        bulk = [line for line in lines if line.startswith("vllm:generation_tokens_total") and '"batch"' in line]
        return float(busy.rsplit(" ", 1)[1]), sum(float(line.rsplit(" ", 1)[1]) for line in bulk)

    async def ask(self, kind: str, shape: dict[str, int]) -> list[float]:
        """Moments of a request's tokens, with that of its sending first."""
        self.number += 1
        asked = body(kind, self.number, shape["prompt"], shape["answer"], self.vocabulary)
        began = time.perf_counter()
        moments = await stream(self.server.host, self.server.port, "/v1/completions", asked)
        return [began, *moments[: shape["answer"]]]

    async def bulk(self) -> None:
        """One caller of bulk work: the next request follows the last."""
        while not self.stopping:
            self.number += 1
            asked = body("bulk", self.number, BULK["prompt"], BULK["answer"], self.vocabulary)
            await stream(self.server.host, self.server.port, "/v1/completions", asked)

    async def people(self, seconds: float, seed: int) -> list[list[float]]:
        """The moments of those who come in `seconds`."""
        dice = random.Random(seed)
        tasks, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            tasks.append(asyncio.create_task(self.ask("person", PERSON)))
            await asyncio.sleep(dice.expovariate(PEOPLE_PER_SECOND))
        return await asyncio.gather(*tasks)

    async def window(self, seconds: float, *, people: bool, bulk: int, seed: int) -> Window:
        """`seconds` of people, of `bulk` callers of bulk work, or of both."""
        self.stopping = False
        callers = [asyncio.create_task(self.bulk()) for _ in range(bulk)]
        if bulk:
            await asyncio.sleep(2.0)  # until every slot is taken
        before, began, had = await asyncio.to_thread(self.books), time.perf_counter(), stolen()
        answers: list[list[float]] = []
        if people:
            answers = await self.people(seconds, seed)
        else:
            await asyncio.sleep(seconds)
        lost = stolen_since(had)
        after, took = await asyncio.to_thread(self.books), time.perf_counter() - began
        self.stopping = True
        await asyncio.gather(*callers)
        busy, tokens = ((now - then) / took for now, then in zip(after, before, strict=True))
        return felt(answers, lost, busy, tokens)


def felt(answers: list[list[float]], lost: float, busy: float = 0.0, bulk: float = 0.0) -> Window:
    """Of requests' moments, that of their sending first."""
    return Window(
        firsts=[a[1] - a[0] for a in answers],
        gaps=[b - a for moments in answers for a, b in pairwise(moments[1:])],
        whole=[a[-1] - a[0] for a in answers],
        stolen=lost,
        busy=busy,
        bulk=bulk,
    )
