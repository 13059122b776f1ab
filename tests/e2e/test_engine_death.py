"""The engine process dies under real clients: they wait a moment, and hear what they would have heard."""

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
from websockets.sync.client import connect

from tests.conftest import Server
from tests.e2e.test_resume import events

ASK = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "ignore_eos": True, "seed": 11}
TOKENS = 300


@pytest.fixture
def server() -> Iterator[Server]:
    """With the slowest kernels there are: answers take a while."""
    running = Server.start("--max-num-seqs", "4", "--kernels", "torch")
    yield running
    running.stop()


def engine_of(server: Server) -> psutil.Process:
    (engine,) = psutil.Process(server.process.pid).children()
    return engine


def streamed(server: Server, heard: Callable[[], None]) -> str:
    text = ""
    with httpx.Client(base_url=server.url, timeout=60) as http:
        ask = ASK | {"stream": True, "max_tokens": TOKENS}
        with http.stream("POST", "/v1/chat/completions", json=ask) as response:
            for _, data in events(response):
                if data == "[DONE]":
                    return text
                for choice in json.loads(data)["choices"]:
                    text += choice["delta"].get("content", "")
                    heard()
    raise AssertionError("a stream without an end")


def whole(server: Server, heard: Callable[[], None]) -> list[str]:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        ask = ASK | {"n": 2, "max_tokens": TOKENS, "service_tier": "flex"}
        answer = http.post("/v1/chat/completions", json=ask).raise_for_status().json()
    return [choice["message"]["content"] for choice in answer["choices"]]


def spoken(server: Server, heard: Callable[[], None]) -> str:
    text = ""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Count from 3 to 400."}]}
    with connect(server.url.replace("http", "ws") + "/v1/realtime") as socket:
        socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        response = {"seed": 5, "max_output_tokens": TOKENS}
        socket.send(json.dumps({"type": "response.create", "response": response}))
        while (event := json.loads(socket.recv(60)))["type"] != "response.done":
            assert event["type"] != "error", event
            text += event["delta"] if event["type"] == "response.output_text.delta" else ""
    assert event["response"]["status"] in ("completed", "incomplete"), event
    return text


KINDS = (streamed, whole, spoken)


def all_at_once(server: Server, heard: Callable[[], None]) -> list[str | list[str]]:
    with ThreadPoolExecutor(len(KINDS)) as pool:
        return [answer.result() for answer in [pool.submit(kind, server, heard) for kind in KINDS]]


def test_an_engine_that_is_killed_costs_no_client_a_word(server: Server):
    """Streamed, whole and over a WebSocket, killed twice; meanwhile whoever asks for /health is told, and a newcomer
    waits."""
    undisturbed = all_at_once(server, lambda: None)
    told: list[tuple[int, str]] = []
    killed, killers = [], []
    pieces = 0

    def kill() -> None:
        engine = engine_of(server)
        os.kill(engine.pid, signal.SIGKILL)
        killed.append(engine.pid)
        with httpx.Client(base_url=server.url, timeout=60) as http:
            while True:
                health = http.get("/health")
                if health.status_code == 503:
                    break
            told.append((health.status_code, health.json()["error"]["message"]))
            newcomer = ASK | {"max_tokens": 1}
            assert http.post("/v1/chat/completions", json=newcomer).status_code == 200

    def heard() -> None:
        nonlocal pieces
        pieces += 1
        if pieces in (20, 120):
            killers.append(threading.Thread(target=kill))
            killers[-1].start()

    assert all_at_once(server, heard) == undisturbed
    for killer in killers:
        killer.join(60)
    assert len(set(killed)) == 2 and engine_of(server).pid not in killed
    assert told == [(503, "the engine died, and another one is loading")] * 2
    with httpx.Client(base_url=server.url) as http:
        assert http.get("/health").status_code == 200
        assert re.search(r"^carousel:engine_restarts_total 2.0$", http.get("/metrics").text, re.M)
    assert sum("another one is started" in line for line in server.log) == 2


def test_the_account_of_an_answer_says_that_an_engine_died(server: Server):
    """And for how long that kept it."""
    with httpx.Client(base_url=server.url, timeout=60) as http:
        ask = ASK | {"stream": True, "max_tokens": 60}
        with http.stream("POST", "/v1/chat/completions", json=ask) as response:
            reading = events(response)
            for _ in range(5):
                next(reading)
            began = time.monotonic()
            os.kill(engine_of(server).pid, signal.SIGKILL)
            *_, (_, last) = reading
            seconds = time.monotonic() - began
        assert last == "[DONE]"
        account = http.get(f"/v1/requests/{response.headers['x-carousel-stream']}").json()
    phases = [(i["phase"], i.get("cause")) for i in account["choices"][0]["intervals"]]
    at = phases.index(("queued", "restart"))
    assert ("decode", None) in phases[:at] and ("decode", None) in phases[at:]
    assert 0 < account["choices"][0]["intervals"][at]["ms"] < 1000 * seconds
