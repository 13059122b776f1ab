"""An interactive request arrives while bulk work occupies all slots and pages."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tests.conftest import Server
from tests.limits import HANG_SECONDS

BULK = 12


@pytest.fixture(scope="module")
def small_server():
    """Yield a server with four slots and pages for little more than four sequences, so that bulk work occupies all."""
    running = Server.start("--max-num-seqs", "4", "--num-pages", "20", "--page-size", "16", "--max-model-len", "256")
    yield running
    running.stop()


def ask(content: str, tier: str, tokens: int, seed: int) -> dict:
    return {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "service_tier": tier,
        "seed": seed,
        "temperature": 0.8,
        "ignore_eos": True,
    }


async def complete(http: httpx.AsyncClient, body: dict) -> str:
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


async def test_an_interactive_request_is_served_while_bulk_work_has_every_slot_and_page(small_server):
    """It does not wait for the earlier bulk requests, and preemption changes no text."""
    bulk = [ask(f"Tell me a story about number {i}.", "flex", 50, i) for i in range(BULK)]
    interactive = ask("Hello!", "priority", 12, 99)
    texts: list[list[str]] = [[] for _ in bulk]
    async with httpx.AsyncClient(base_url=small_server.url, timeout=HANG_SECONDS) as http:
        alone = [await complete(http, body) for body in bulk]
        interactive_alone = await complete(http, interactive)
        was_preempted = False

        async def send_repeatedly(body: dict, answers: list[str]) -> None:
            while not was_preempted:
                answers.append(await complete(http, body))

        running = [
            asyncio.create_task(send_repeatedly(body, answers)) for body, answers in zip(bulk, texts, strict=True)
        ]
        # A slot can be free between two bulk sequences, and a request that arrives then preempts none.
        async with asyncio.timeout(HANG_SECONDS):
            while not was_preempted:
                while not await is_full(http):
                    await asyncio.sleep(0.005)
                before = sum(map(len, texts))
                assert await complete(http, interactive) == interactive_alone
                assert sum(map(len, texts)) - before < BULK, "the interactive request waited for the bulk work"
                was_preempted = await metric(http, "vllm:num_preemptions_total") > 0
        await asyncio.gather(*running)
    assert all(set(answers) <= {text} for answers, text in zip(texts, alone, strict=True))


async def metric(http: httpx.AsyncClient, name: str, label: str = "") -> float:
    """Return the sum of the samples of a metric that have the label."""
    lines = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and label in line)


async def is_full(http: httpx.AsyncClient) -> bool:
    return await metric(http, "vllm:num_requests_running", 'service_class="batch"') == 4


async def test_a_preempted_stream_names_the_class_of_the_beneficiary(small_server):
    """Its stream has a comment about it for clients that request comments, and a later one about its resumption."""
    streams: list[list[dict]] = []  # status comments of each stream

    def preempted_by_interactive() -> list[dict]:
        return [status for statuses in streams for status in statuses if status.get("by") == "interactive"]

    async with httpx.AsyncClient(base_url=small_server.url, timeout=HANG_SECONDS) as http:

        async def send_repeatedly(seed: int) -> None:
            body = ask(f"Tell me a story about number {seed}.", "flex", 50, seed) | {"stream": True}
            while not preempted_by_interactive():
                statuses: list[dict] = []
                streams.append(statuses)
                headers = {"X-Carousel-Resume": "0"}
                async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
                    async for line in response.aiter_lines():
                        if line.startswith(": carousel "):
                            statuses.append(json.loads(line.removeprefix(": carousel ")))

        running = [asyncio.create_task(send_repeatedly(seed)) for seed in range(BULK)]
        async with asyncio.timeout(HANG_SECONDS):
            while not preempted_by_interactive():
                await complete(http, ask("Hello!", "priority", 4, 1))
        await asyncio.gather(*running)
    for status in preempted_by_interactive():
        assert status["state"] == "paused" and status["mechanism"] in ("swap", "partial", "recompute")
    assert all(statuses[-1]["state"] == "running" for statuses in streams if statuses)
