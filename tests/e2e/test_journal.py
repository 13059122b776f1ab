"""Answers that survive the end of the API process, in a second process with the same store."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from app.store.entries import Entry
from tests.conftest import ROOT, Server
from tests.limits import HANG_SECONDS

RESUME = {"X-Carousel-Resume": "120"}
STORY = [{"role": "user", "content": "Tell me a story about a fox."}]
CHAT, MESSAGES, RESPONSES, OLLAMA = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"
LENGTH = 600
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": STORY, "stream": True, "ignore_eos": True, "seed": 7, "max_tokens": LENGTH, "n": 2},
    "/v1/completions": {"prompt": "Once", "stream": True, "ignore_eos": True, "seed": 7, "max_tokens": LENGTH},
    MESSAGES: {"model": "demo", "messages": STORY, "stream": True, "max_tokens": LENGTH, "temperature": 0.0},
}
FORMAT = {
    "messages": STORY,
    "stream": True,
    "seed": 3,
    "max_tokens": LENGTH,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 60}},
    },
}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Return a function that starts a server with the same store each time."""
    servers: list[Server] = []

    def begin(*options: str) -> Server:
        store = ("--store", str(tmp_path / "store.db"), "--served-model-name", "demo")
        servers.append(Server.start(*store, *options))
        wait_until_restored(servers[-1])
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


def wait_until_restored(server: Server) -> None:
    """Wait until the answers of an earlier process can be read, before which requests get 503."""
    deadline = time.monotonic() + HANG_SECONDS
    while httpx.get(f"{server.url}/health", timeout=HANG_SECONDS).status_code == 503:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(server: Server) -> None:
    """Kill the API process, with which the engine ends."""
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(HANG_SECONDS)


def frames(response: httpx.Response) -> Iterator[tuple[str, str]]:
    """Yield (event id, data) of each event; an event without an id has that of the one before."""
    last = ""
    for line in response.iter_lines():
        if line.startswith("id: "):
            last = line[4:]
        elif line.startswith("data: ") and '"ping"' not in line:
            yield last, line[6:]


def content(data: list[str]) -> list[Any]:
    """Return events without the times of the last one, which differ in each run."""
    values = [json.loads(each) for each in data if each != "[DONE]"]
    for value in values:
        value.pop("usage", None)
    return values


def whole(server: Server, path: str, body: dict[str, Any]) -> list[str]:
    """Return the data of an answer that nothing disturbs."""
    with httpx.stream("POST", f"{server.url}{path}", json=body, headers=RESUME, timeout=HANG_SECONDS) as response:
        return [data for _, data in frames(response)]


def begin_answer(server: Server, path: str, body: dict[str, Any], events: int) -> tuple[str, list[tuple[str, str]]]:
    """Return the stream of an answer and its first events."""
    with httpx.stream("POST", f"{server.url}{path}", json=body, headers=RESUME, timeout=HANG_SECONDS) as response:
        assert response.status_code == 200, response.read()
        reading = frames(response)
        return response.headers["X-Carousel-Stream"], [next(reading) for _ in range(events)]


def follow(server: Server, stream: str, cursor: str) -> list[str]:
    """Return the data of the events after a cursor."""
    url = f"{server.url}/v1/streams/{stream}"
    with httpx.stream("GET", url, headers={"Last-Event-ID": cursor}, timeout=HANG_SECONDS) as response:
        assert response.status_code == 200, response.read()
        return [data for _, data in frames(response)]


def anonymous_ids(values: list[Any]) -> list[Any]:
    """Return events without the ids and the time of their answer."""
    text = json.dumps(values)
    for value in values:
        for name in ("id", "created", "message"):
            if name in value:
                text = text.replace(json.dumps(value[name]), "0")
    return json.loads(text)


def choice_of(value: dict[str, Any]) -> int:
    """Return the choice of an event, as choices take turns differently in each run."""
    return int(value["choices"][0]["index"]) if value.get("choices") else 0


@pytest.mark.parametrize(("path", "body"), [*BODIES.items(), (CHAT, FORMAT)], ids=[*BODIES, "format"])
def test_a_killed_server_continues_its_answers_where_each_reader_was(start, path: str, body: dict[str, Any]):
    """The events before and after are those of an answer that nothing disturbs."""
    first = start()
    expected = whole(first, path, body)
    stream, before = begin_answer(first, path, body, len(expected) // 3)
    kill(first)
    second = start()
    after = follow(second, stream, before[-1][0])
    kept = [data for _, data in before]
    joined, wanted = (anonymous_ids(content(data)) for data in (kept + after, expected))
    assert sorted(joined, key=choice_of) == sorted(wanted, key=choice_of)


def test_a_killed_server_continues_a_response_at_the_number_of_an_event(start):
    """The numbers of events stay valid, although the last tokens may not have been written."""
    first = start()
    body = {"input": "Tell me a story.", "stream": True, "max_output_tokens": LENGTH, "temperature": 0.0}
    expected = [json.loads(data) for data in whole(first, RESPONSES, body)]
    stream, before = begin_answer(first, RESPONSES, body, len(expected) // 2)
    kill(first)
    second = start()
    last = json.loads(before[-1][1])["sequence_number"]
    url = f"{second.url}{RESPONSES}/resp_{stream}?stream=true&starting_after={last}"
    with httpx.stream("GET", url, timeout=HANG_SECONDS) as response:
        after = [json.loads(data) for _, data in frames(response)]
    assert [event["sequence_number"] for event in after] == list(range(last + 1, len(expected)))
    text = "".join(event.get("delta", "") for event in after)
    assert text == "".join(event.get("delta", "") for event in expected[last + 1 :])


def test_a_finished_answer_is_kept_with_its_last_record(start):
    first = start()
    expected = whole(first, CHAT, BODIES[CHAT] | {"max_tokens": 20})
    stream = json.loads(expected[0])["id"].removeprefix("chatcmpl-")
    kill(first)
    second = start()
    assert follow(second, stream, "") == expected


def test_a_repeated_request_gets_the_answer_of_the_killed_server(start):
    first = start()
    body = BODIES[CHAT] | {"stream": False, "max_tokens": 30}
    headers = {"Idempotency-Key": "one"}
    answer = httpx.post(f"{first.url}{CHAT}", json=body, headers=headers, timeout=HANG_SECONDS).json()
    kill(first)
    second = start()
    again = httpx.post(f"{second.url}{CHAT}", json=body, headers=headers, timeout=HANG_SECONDS)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json()["id"] == answer["id"]
    assert again.json()["choices"] == answer["choices"]


def test_an_answer_without_a_reader_goes_on(start):
    """It is complete when its reader returns."""
    first = start()
    stream, before = begin_answer(first, CHAT, BODIES[CHAT] | {"n": 1}, 50)
    kill(first)
    second = start()
    with httpx.Client(base_url=second.url, timeout=HANG_SECONDS) as http:
        while http.get(f"/v1/requests/{stream}").json()["state"] != "ended":
            pass
    assert follow(second, stream, before[-1][0])[-1] == "[DONE]"


def test_another_model_ends_the_answers_of_the_killed_server(start):
    first = start()
    stream, before = begin_answer(first, CHAT, BODIES[CHAT], 50)
    kill(first)
    second = start("--kernels", "torch")
    assert '"code":"server_restarted"' in follow(second, stream, before[-1][0])[-1]


def test_tokens_of_another_tokenizer_are_not_read(start, tmp_path: Path):
    """They would be another text."""
    first = start()
    stream, before = begin_answer(first, CHAT, BODIES[CHAT], 50)
    kill(first)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        [(entry,)] = connection.execute("SELECT entry FROM request").fetchall()
        decoded = msgspec.msgpack.decode(entry, type=Entry)
        other = Entry(decoded.request, msgspec.structs.replace(decoded.note, vocabulary="other"))
        connection.execute("UPDATE request SET entry = ?", (msgspec.msgpack.encode(other),))
    second = start()
    answer = httpx.get(f"{second.url}/v1/streams/{stream}", headers={"Last-Event-ID": before[-1][0]})
    assert answer.status_code == 410


def test_two_servers_cannot_use_one_store(start, tmp_path: Path):
    start()
    command = [sys.executable, "-m", "app", "serve", "demo", "--port", "0", "--store", str(tmp_path / "store.db")]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
    assert refused.returncode == 2 and "another server uses it" in refused.stderr


def test_a_server_keeps_its_answers_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In the state folder, by its port; a second server at the same file is refused, and --store none keeps nothing."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    first = Server.start("--port", port)
    try:
        stream, before = begin_answer(first, CHAT, BODIES[CHAT] | {"n": 1}, 50)
        kill(first)
        assert [path.name for path in tmp_path.glob("*.db")] == [f"store-{port}.db"]
        second = Server.start("--port", port)
        assert follow(second, stream, before[-1][0])[-1] == "[DONE]"
        other = Server.start("--store", "none")
        assert other.stop() in (0, -signal.SIGTERM) and second.stop() in (0, -signal.SIGTERM)
        assert [path.name for path in tmp_path.glob("*.db")] == [f"store-{port}.db"]
    finally:
        first.process.kill()
