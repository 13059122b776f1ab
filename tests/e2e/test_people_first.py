"""A person arrives while bulk work has everything."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tests.conftest import Server

BULK = 12


@pytest.fixture(scope="module")
def small_server():
    """Four slots and pages for little more than four sequences: bulk work takes all of both."""
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


async def whole(http: httpx.AsyncClient, body: dict) -> str:
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


async def test_a_person_is_served_while_bulk_work_has_every_slot_and_page(small_server):
    """The person does not wait for as many bulk texts as were there before; each text is what it is alone."""
    bulk = [ask(f"Tell me a story about number {i}.", "flex", 50, i) for i in range(BULK)]
    person = ask("Hello!", "priority", 12, 99)
    texts: list[list[str]] = [[] for _ in bulk]
    async with httpx.AsyncClient(base_url=small_server.url, timeout=120) as http:
        alone = [await whole(http, body) for body in bulk]
        person_alone = await whole(http, person)
        somebody_was_paused = False

        async def never_stop(body: dict, answers: list[str]) -> None:
            while not somebody_was_paused:
                answers.append(await whole(http, body))

        running = [asyncio.create_task(never_stop(body, answers)) for body, answers in zip(bulk, texts, strict=True)]
        # Between two bulk sequences a slot can be free, and nobody is paused for who comes just then.
        async with asyncio.timeout(60):
            while not somebody_was_paused:
                while not await is_full(http):
                    await asyncio.sleep(0.005)
                before = sum(map(len, texts))
                assert await whole(http, person) == person_alone
                assert sum(map(len, texts)) - before < BULK, "the person waited for the bulk work"
                somebody_was_paused = await metric(http, "vllm:num_preemptions_total") > 0
        await asyncio.gather(*running)
    assert all(set(answers) <= {text} for answers, text in zip(texts, alone, strict=True))


async def metric(http: httpx.AsyncClient, name: str, label: str = "") -> float:
    """The sum of a metric's samples that carry the label."""
    lines = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and label in line)


async def is_full(http: httpx.AsyncClient) -> bool:
    return await metric(http, "vllm:num_requests_running", 'service_class="batch"') == 4


async def test_who_is_paused_is_told_for_whom(small_server):
    """The victim's stream says so in a comment to a client that asks for them, and later that it runs again."""
    told: list[list[dict]] = []  # what each answer's stream said

    def for_a_person() -> list[dict]:
        return [status for statuses in told for status in statuses if status.get("by") == "interactive"]

    async with httpx.AsyncClient(base_url=small_server.url, timeout=120) as http:

        async def never_stop(seed: int) -> None:
            body = ask(f"Tell me a story about number {seed}.", "flex", 50, seed) | {"stream": True}
            while not for_a_person():
                statuses: list[dict] = []
                told.append(statuses)
                comments = {"X-Carousel-Resume": "0"}
                async with http.stream("POST", "/v1/chat/completions", json=body, headers=comments) as response:
                    async for line in response.aiter_lines():
                        if line.startswith(": carousel "):
                            statuses.append(json.loads(line.removeprefix(": carousel ")))

        running = [asyncio.create_task(never_stop(seed)) for seed in range(BULK)]
        async with asyncio.timeout(60):
            while not for_a_person():
                await whole(http, ask("Hello!", "priority", 4, 1))
        await asyncio.gather(*running)
    for status in for_a_person():
        assert status["state"] == "paused" and status["mechanism"] in ("swap", "partial", "recompute")
    assert all(statuses[-1]["state"] == "running" for statuses in told if statuses)
