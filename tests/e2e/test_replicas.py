"""Two engines behind one server: one is killed under load, and people are served before batch work."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, expect

from app.cli.explain import explain
from engine.host import num_cores
from tests.conftest import Server
from tests.e2e.test_resume import events
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.skipif(num_cores() < 2, reason="two engines need two cores")

SLOTS, STREAMS, TOKENS = 4, 16, 60
BODY = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "ignore_eos": True}


def engines(server: Server) -> list[psutil.Process]:
    """Return the engine processes, the oldest first: not by their numbers, which begin again after the largest."""
    children = psutil.Process(server.process.pid).children()
    found = [child for child in children if "engine.worker" in child.cmdline()]
    return sorted(found, key=lambda child: child.create_time())


def states(server: Server) -> list[str]:
    return [engine["state"] for engine in httpx.get(f"{server.url}/health").json().get("engines", [])]


def both_ready(server: Server) -> None:
    began = time.monotonic()
    while states(server) != ["ready", "ready"]:
        assert time.monotonic() - began < HANG_SECONDS
        time.sleep(0.05)


@pytest.fixture(scope="module")
def pair() -> Iterator[Server]:
    """Yield a server with two engines and the slowest kernels, so that answers take some seconds."""
    running = Server.start("--replicas", "2", "--max-num-seqs", str(SLOTS), "--kernels", "torch", "--device", "cpu")
    both_ready(running)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def alone() -> Iterator[list[str]]:
    """Yield the texts of one engine."""
    running = Server.start("--max-num-seqs", str(SLOTS), "--kernels", "torch")
    yield [text for text, _ in stream_all(running, lambda: None)]
    running.stop()


def stream(server: Server, seed: int, on_chunk: Callable[[], None]) -> tuple[str, str]:
    """Return the text of a streamed answer, and its id."""
    text = ""
    body = BODY | {"stream": True, "max_tokens": TOKENS, "seed": seed}
    with (
        httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        for _, data in events(response):
            if data == "[DONE]":
                return text, response.headers["x-carousel-stream"]
            for choice in json.loads(data)["choices"]:
                text += choice["delta"].get("content", "")
                on_chunk()
    raise AssertionError("a stream without an end")


def stream_all(server: Server, on_chunk: Callable[[], None]) -> list[tuple[str, str]]:
    with ThreadPoolExecutor(STREAMS) as pool:
        return list(pool.map(lambda seed: stream(server, seed, on_chunk), range(STREAMS)))


def samples(server: Server, name: str, *labels: str) -> float:
    """Return the sum of a metric's samples that have the labels."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    found = [line for line in lines if line.startswith(name + "{") and all(label in line for label in labels)]
    assert found, name
    return sum(float(line.split()[-1]) for line in found)


def test_each_engine_has_cores_of_its_own(pair: Server):
    """Together they have those of the server."""
    first, second = (set(engine.cpu_affinity()) for engine in engines(pair))
    assert first and second and not first & second
    assert first | second == set(psutil.Process(pair.process.pid).cpu_affinity())


def test_no_stream_loses_text_when_one_engine_is_killed(pair: Server, alone: list[str]):
    """All texts equal those of one engine alone; the server stays ready, and timelines name the lost engine."""
    lock, chunks, health = threading.Lock(), 0, []

    def on_chunk() -> None:
        nonlocal chunks
        with lock:
            chunks += 1
            if chunks != STREAMS * TOKENS // 4:
                return
        os.kill(engines(pair)[0].pid, signal.SIGKILL)
        ends_at = time.monotonic() + HANG_SECONDS
        while (answer := httpx.get(f"{pair.url}/health")).json()["engines"][0]["state"] == "ready":
            assert time.monotonic() < ends_at
            time.sleep(0.01)
        health.append((answer.status_code, answer.json()["engines"]))

    both_ready(pair)
    answers = stream_all(pair, on_chunk)
    assert [text for text, _ in answers] == alone
    assert health == [(200, [{"engine": 0, "state": "restarting"}, {"engine": 1, "state": "ready"}])]
    explained = [explain(pair.url, stream_id, None) for _, stream_id in answers]
    moved = [text for text in explained if "engine 0 died while computing it; it went on in engine 1" in text]
    # One that its engine has not reported yet counts as computed too, as it may have caused the death.
    before = [text.partition("engine 0 died")[0] for text in moved]
    assert 0 < sum("prefill" in text for text in before) <= SLOTS
    assert not any("prefill" not in text and ("slots" in text or "other requests" in text) for text in before)
    assert all("engine 1 died" not in text for text in explained)
    both_ready(pair)
    assert samples(pair, "carousel:engine_restarts_total", 'engine="0"') == 1
    assert samples(pair, "carousel:engine_restarts_total", 'engine="1"') == 0
    assert samples(pair, "carousel:steps_total", 'engine="1"') > 0
    assert samples(pair, "carousel:slots", 'state="total"') == 2 * SLOTS


def test_people_are_served_while_batch_work_waits_in_the_server(pair: Server):
    """The engines have twice their slots of waiting batch requests, and a status has the position of the others."""
    both_ready(pair)
    total = 12 * SLOTS
    url, body = f"{pair.url}/v1/chat/completions", BODY | {"service_tier": "flex", "max_tokens": TOKENS}
    with ThreadPoolExecutor(total + 1) as pool:
        bulk = [pool.submit(httpx.post, url, json=body | {"seed": i}, timeout=HANG_SECONDS) for i in range(total)]
        while samples(pair, "carousel:num_requests_unplaced", 'service_class="batch"') < SLOTS:
            assert not all(answer.done() for answer in bulk)
            time.sleep(0.01)
        for engine in ("0", "1"):
            waiting = samples(pair, "vllm:num_requests_waiting", 'service_class="batch"', f'engine="{engine}"')
            assert waiting <= 2 * SLOTS
        shows_status = {"X-Carousel-Resume": "0"}
        last = pool.submit(httpx.post, url, json=body | {"stream": True}, headers=shows_status, timeout=HANG_SECONDS)
        person = httpx.post(url, json=BODY | {"max_tokens": 5, "service_tier": "priority"}, timeout=HANG_SECONDS)
        assert person.json()["usage"]["completion_tokens"] == 5
        assert not all(answer.done() for answer in bulk)
        positions = [int(found) for found in re.findall(r'"position":\s*(\d+)', last.result().text)]
        assert all(answer.result().json()["usage"]["completion_tokens"] == TOKENS for answer in bulk)
    assert positions and positions[0] > positions[-1]
    assert samples(pair, "carousel:num_requests_unplaced") == 0


def test_a_session_stays_with_the_engine_that_has_its_pages(pair: Server):
    """Each later turn finds its conversation in the cache, although two engines have free slots."""
    both_ready(pair)
    for session in range(4):
        read = 0  # tokens of the previous prompt
        messages = [{"role": "user", "content": f"Session {session}: " + "the fox and the owl walk on. " * 20}]
        for _ in range(3):
            body = {"messages": messages, "max_tokens": 5, "seed": 1}
            answer = httpx.post(f"{pair.url}/v1/chat/completions", json=body, timeout=HANG_SECONDS).json()
            usage, text = answer["usage"], answer["choices"][0]["message"]["content"]
            assert usage["prompt_tokens_details"]["cached_tokens"] >= 0.7 * read
            read = usage["prompt_tokens"]
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]


@pytest.mark.browser
def test_the_engine_page_shows_the_chosen_engine(pair: Server, browser: Browser):
    """There is a button for each engine, and one that is killed shows it."""
    both_ready(pair)
    page = browser.new_page()
    page.goto(pair.url + "/engine")
    buttons = page.locator("#engines button")
    expect(buttons).to_have_count(2)
    expect(buttons.nth(1)).to_have_attribute("data-state", "live")
    buttons.nth(1).click()
    expect(buttons.nth(1)).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    os.kill(engines(pair)[0].pid, signal.SIGKILL)  # of either engine: an earlier test may have replaced one
    live = page.locator("#engines button[data-state=live]")
    expect(page.locator("#engines button[data-state=restarting]")).to_have_count(1, timeout=60_000)
    expect(live).to_have_count(1)
    live.click()
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    expect(live).to_have_count(2, timeout=60_000)
    page.close()
