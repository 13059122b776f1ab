"""The engine process crashes under real clients, which wait for a moment and get the same output."""

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
import pytest
from playwright.sync_api import Browser, expect
from websockets.sync.client import connect

from tests.conftest import Server
from tests.e2e.test_page_chat import Chat
from tests.e2e.test_resume import events
from tests.limits import HANG_SECONDS

BODY = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "ignore_eos": True, "seed": 11}
TOKENS = 300
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Yield a server with the slowest kernels, so that answers take some seconds."""
    running = Server.start("--max-num-seqs", "4", "--kernels", "torch")
    yield running
    running.stop()


def restarts(server: Server) -> float:
    """Return the number of restarts in the metrics."""
    metrics = httpx.get(f"{server.url}/metrics").text
    found = re.search(r'^carousel:engine_restarts_total\{engine="0"\} (\S+)$', metrics, re.M)
    assert found
    return float(found[1])


def stream_text(server: Server, on_chunk: Callable[[], None]) -> str:
    text = ""
    with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http:
        body = BODY | {"stream": True, "max_tokens": TOKENS}
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            for _, data in events(response):
                if data == "[DONE]":
                    return text
                for choice in json.loads(data)["choices"]:
                    text += choice["delta"].get("content", "")
                    on_chunk()
    raise AssertionError("a stream without an end")


def complete_texts(server: Server, on_chunk: Callable[[], None]) -> list[str]:
    with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http:
        body = BODY | {"n": 2, "max_tokens": TOKENS, "service_tier": "flex"}
        answer = http.post("/v1/chat/completions", json=body).raise_for_status().json()
    return [choice["message"]["content"] for choice in answer["choices"]]


def realtime_text(server: Server, on_chunk: Callable[[], None]) -> str:
    text = ""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Count from 3 to 400."}]}
    with connect(server.url.replace("http", "ws") + "/v1/realtime") as socket:
        socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        response = {"seed": 5, "max_output_tokens": TOKENS}
        socket.send(json.dumps({"type": "response.create", "response": response}))
        while (event := json.loads(socket.recv(HANG_SECONDS)))["type"] != "response.done":
            assert event["type"] != "error", event
            text += event["delta"] if event["type"] == "response.output_text.delta" else ""
    assert event["response"]["status"] in ("completed", "incomplete"), event
    return text


def constrained_text(server: Server, on_chunk: Callable[[], None]) -> str:
    """Return JSON that is longer than its limit of tokens."""
    schema = {"type": "array", "items": {"enum": ["fox", "hen", "owl"]}, "minItems": 1000}
    form = {"type": "json_schema", "json_schema": {"name": "animals", "schema": schema}}
    body = {"messages": BODY["messages"], "seed": 7, "max_tokens": TOKENS, "response_format": form}
    with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http:
        answer = http.post("/v1/chat/completions", json=body).raise_for_status().json()
    text = str(answer["choices"][0]["message"]["content"])
    assert re.match(r'\[\s*"(fox|hen|owl)"', text)
    return text


def forced_calls(server: Server, on_chunk: Callable[[], None]) -> list[str]:
    """Return the arguments of calls of which the server ends the answer, and the tokens that were used."""
    animals = {"type": "array", "items": {"enum": ["fox", "hen", "owl"]}, "minItems": 10, "maxItems": 10}
    parameters = {"type": "object", "properties": {"animals": animals}, "required": ["animals"]}
    tools = [{"type": "function", "function": {"name": "pick", "parameters": parameters}}]
    body = {"messages": BODY["messages"], "seed": 11, "tools": tools, "tool_choice": "required"}
    with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http:
        answer = http.post("/v1/chat/completions", json=body | {"parallel_tool_calls": True}).raise_for_status().json()
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    calls = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
    return [*calls, str(answer["usage"]["completion_tokens"])]


KINDS = (stream_text, complete_texts, realtime_text, constrained_text, forced_calls)


def run_all(server: Server, on_chunk: Callable[[], None]) -> list[str | list[str]]:
    with ThreadPoolExecutor(len(KINDS)) as pool:
        return [answer.result() for answer in [pool.submit(kind, server, on_chunk) for kind in KINDS]]


def test_a_deadline_ends_an_answer_while_the_engine_hangs(server: Server):
    """A stream ends with an error and a whole answer is refused at the deadline, and later requests are served."""
    engine = server.engine
    body = BODY | {"max_tokens": 100, "deadline_ms": 2500}  # which it would otherwise meet
    with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http, ThreadPoolExecutor(1) as pool:
        with http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as response:
            stream_events = events(response)
            for _, data in stream_events:
                if json.loads(data)["choices"][0]["delta"].get("content"):
                    break
            engine.suspend()
            try:
                complete = pool.submit(httpx.post, f"{server.url}/v1/chat/completions", json=body, timeout=HANG_SECONDS)
                *_, (_, last) = stream_events
                assert json.loads(last)["error"]["code"] == "deadline_exceeded"
                error = complete.result().json()["error"]
                assert (error["code"], error["param"]) == ("deadline_exceeded", "deadline_ms")
            finally:
                engine.resume()
        assert http.post("/v1/chat/completions", json=BODY | {"max_tokens": 3}).status_code == 200


def test_no_client_loses_text_when_the_engine_is_killed(server: Server):
    """Streams, whole answers and WebSockets survive two kills, while /health reports the restart and requests wait."""
    undisturbed = run_all(server, lambda: None)
    before = restarts(server)
    responses: list[tuple[int, str]] = []
    killed, threads = [], []
    chunks = 0

    def kill() -> None:
        engine = server.engine
        os.kill(engine.pid, signal.SIGKILL)
        killed.append(engine.pid)
        with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http:
            while True:
                health = http.get("/health")
                if health.status_code == 503:
                    break
            responses.append((health.status_code, health.json()["error"]["message"]))
            newcomer = BODY | {"max_tokens": 1}
            assert http.post("/v1/chat/completions", json=newcomer).status_code == 200

    def on_chunk() -> None:
        nonlocal chunks
        chunks += 1
        if chunks in (20, 120):
            threads.append(threading.Thread(target=kill))
            threads[-1].start()

    assert run_all(server, on_chunk) == undisturbed
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert len(set(killed)) == 2 and server.engine.pid not in killed
    assert responses == [(503, "the engine died, and another one is loading")] * 2
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert restarts(server) == before + 2 == sum("another one is started" in line for line in server.log)
    assert sum("ended by SIGKILL" in line for line in server.log) == before + 2


def test_the_timeline_of_an_answer_shows_the_engine_restart(server: Server):
    """The interval has the time that the restart took."""
    with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http:
        body = BODY | {"stream": True, "max_tokens": 60}
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            stream_events = events(response)
            for _ in range(5):
                next(stream_events)
            began = time.monotonic()
            os.kill(server.engine.pid, signal.SIGKILL)
            *_, (_, last) = stream_events
            seconds = time.monotonic() - began
        assert last == "[DONE]"
        timeline = http.get(f"/v1/requests/{response.headers['x-carousel-stream']}").json()
    phases = [(i["phase"], i.get("cause")) for i in timeline["choices"][0]["intervals"]]
    at = phases.index(("queued", "restart"))
    assert ("decode", None) in phases[:at] and ("decode", None) in phases[at:]
    assert 0 < timeline["choices"][0]["intervals"][at]["ms"] < 1000 * seconds


@pytest.mark.browser
def test_the_pages_show_that_the_engine_restarts(server: Server, browser: Browser):
    """The chat shows it below the text so far, which continues, and the engine page in place of "live"."""
    context = browser.new_context()
    watching, chat = context.new_page(), Chat(context.new_page(), server.url)
    live, wait = watching.locator("#live"), chat.answers.last.locator(".wait")
    watching.goto(server.url + "/engine")
    expect(live).to_have_attribute("data-state", "live", timeout=WAIT_MS)
    chat.open().send_long()
    chat.wait_started()
    os.kill(server.engine.pid, signal.SIGKILL)
    expect(wait).to_contain_text("The engine is restarting", timeout=WAIT_MS)
    so_far = chat.text().inner_text()
    expect(live).to_contain_text("the engine is restarting", timeout=WAIT_MS)
    expect(live).to_have_attribute("data-state", "live", timeout=WAIT_MS)
    expect(wait).to_be_hidden(timeout=WAIT_MS)
    expect(chat.text()).to_contain_text(so_far.rstrip()[-20:], timeout=WAIT_MS)
    context.close()
