"""Two API processes with one engine: when one is killed, clients continue their answers at the other one."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.conftest import Server
from tests.e2e.test_journal import (
    BODIES,
    CHAT,
    FORMAT,
    MESSAGES,
    RESPONSES,
    RESUME,
    anonymous_ids,
    begin_answer,
    choice_of,
    content,
    follow,
    kill,
    whole,
)
from tests.e2e.test_remote_engine import SLOW, Engine
from tests.limits import HANG_SECONDS

ANNA, BERT = "anna-0123456789abcdef", "bert-0123456789abcdef"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = {
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}],
    "tool_choice": "required",
    "stream": True,
    "seed": 5,
    "max_tokens": 400,
}
STOP = BODIES[CHAT] | {"n": 1, "stop": ["zebra", "the fox"]}
# Its choices end at different lengths, one of them before the process is killed.
CHOICES = BODIES[CHAT] | {"n": 3, "stop": ["q"], "temperature": 1.2, "seed": 1, "max_tokens": 200}
LOGPROBS = BODIES[CHAT] | {"n": 1, "logprobs": True, "top_logprobs": 3, "max_tokens": 200}
ECHO = BODIES["/v1/completions"] | {"echo": True, "logprobs": 2, "n": 2, "max_tokens": 100}
KINDS = {
    "chat": (CHAT, BODIES[CHAT] | {"n": 1}),
    "completion": ("/v1/completions", BODIES["/v1/completions"]),
    "messages": (MESSAGES, BODIES[MESSAGES]),
    "format": (CHAT, FORMAT),
    "tools": (CHAT, TOOLS),
    "stop": (CHAT, STOP),
    "choices": (CHAT, CHOICES),
    "logprobs": (CHAT, LOGPROBS),
    "choices with logprobs": (CHAT, LOGPROBS | CHOICES),
    "prompt logprobs": ("/v1/completions", ECHO),
}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """Yield the options of an API process for an engine that runs."""
    token = tmp_path_factory.mktemp("token") / "token"
    token.touch(0o600)
    token.write_text("a token for the tests of adoption\n")
    engine = Engine("127.0.0.1:0", token, *SLOW)
    ends_at = time.monotonic() + HANG_SECONDS
    while not (found := re.search(r"is ready on (\S+)", "\n".join(engine.log))):
        assert time.monotonic() < ends_at, engine.log
        time.sleep(0.02)
    yield ("--engines", found[1], "--token-file", str(token), "--served-model-name", "demo")
    engine.process.terminate()
    engine.wait()


@pytest.fixture(scope="module")
def survivor(options: tuple[str, ...]) -> Iterator[Server]:
    """Yield the API process that is not killed."""
    server = Server.start(*options)
    yield server
    server.stop()


@pytest.fixture
def victim(options: tuple[str, ...]) -> Iterator[Server]:
    """Yield an API process that the test kills."""
    server = Server.start(*options)
    yield server
    server.stop()


def events_of(data: list[str]) -> list[Any]:
    """Return events without what differs in each run: times, the ids of answers and calls, and the turns of choices."""
    return sorted(anonymous_ids(content(list(map(without_call, data)))), key=choice_of)


def without_call(data: str) -> str:
    """Return an event without the ID of a call."""
    return re.sub(r"call_[0-9a-f]+", "call", data)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_continues_at_another_api_process_where_its_reader_was(survivor: Server, victim: Server, kind: str):
    """The events before and after are those of an answer that nothing disturbs, each once, and those that were read
    before have the same bytes, whatever turns the choices take. The last ones have times.
    """
    path, body = KINDS[kind]
    expected = whole(victim, path, body)
    stream, before = begin_answer(victim, path, body, len(expected) // 3)
    kill(victim)
    after = follow(survivor, stream, before[-1][0])
    joined = [data for _, data in before] + after
    assert events_of(joined) == events_of(expected)
    again = follow(survivor, stream, "")
    assert again[: len(joined) - 2] == joined[:-2]


def test_a_response_continues_at_the_number_of_an_event(survivor: Server, victim: Server):
    """Its record is stored there too."""
    body = {"input": "Tell me a story.", "stream": True, "max_output_tokens": 300, "temperature": 0.0}
    expected = [json.loads(data) for data in whole(victim, RESPONSES, body)]
    stream, before = begin_answer(victim, RESPONSES, body, len(expected) // 2)
    kill(victim)
    last = json.loads(before[-1][1])["sequence_number"]
    url = f"{survivor.url}{RESPONSES}/resp_{stream}"
    with httpx.stream("GET", f"{url}?stream=true&starting_after={last}", timeout=HANG_SECONDS) as response:
        after = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in after] == list(range(last + 1, len(expected)))
    text = "".join(event.get("delta", "") for event in after)
    assert text == "".join(event.get("delta", "") for event in expected[last + 1 :])
    again = {"input": "And then?", "previous_response_id": f"resp_{stream}", "max_output_tokens": 2}
    assert httpx.post(f"{survivor.url}{RESPONSES}", json=again, timeout=HANG_SECONDS).status_code == 200


def test_a_response_of_a_websocket_continues_over_http(survivor: Server, victim: Server):
    url = victim.url.replace("http", "ws") + RESPONSES
    create = {"type": "response.create", "input": "Tell me a story.", "max_output_tokens": 300, "temperature": 0.0}
    with connect(url, additional_headers=RESUME) as socket:
        socket.send(json.dumps(create))
        events = [json.loads(socket.recv(timeout=HANG_SECONDS)) for _ in range(60)]
    kill(victim)
    stream = events[0]["response"]["id"]
    answer = httpx.get(f"{survivor.url}{RESPONSES}/{stream}?stream=true", timeout=HANG_SECONDS).text
    after = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: ")]
    deltas = [event["delta"] for event in after if event["type"] == "response.output_text.delta"]
    kept = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert kept and deltas[: len(kept)] == kept and len(deltas) > len(kept)


def test_a_repeated_request_gets_the_answer_of_a_killed_process(survivor: Server, victim: Server):
    """It is not computed twice; another body with the key is refused."""
    body = BODIES[CHAT] | {"n": 1, "max_tokens": 400}
    expected = whole(victim, CHAT, body)
    headers = {"Idempotency-Key": "story", **RESUME}
    with httpx.stream("POST", f"{victim.url}{CHAT}", json=body, headers=headers, timeout=HANG_SECONDS) as response:
        stream = response.headers["X-Carousel-Stream"]
        lines = response.iter_lines()
        for _ in range(40):
            next(lines)
        kill(victim)
    other = httpx.post(f"{survivor.url}{CHAT}", json=body | {"seed": 8}, headers=headers, timeout=HANG_SECONDS)
    assert other.status_code == 409
    again = httpx.post(f"{survivor.url}{CHAT}", json=body, headers=headers, timeout=HANG_SECONDS)
    assert (again.headers["X-Carousel-Stream"], again.headers["Idempotent-Replayed"]) == (stream, "true")
    data = [line[6:] for line in again.text.splitlines() if line.startswith("data: ")]
    assert events_of(data) == events_of(expected)


def test_the_end_of_an_answer_that_its_process_has_not_sent_is_read_elsewhere(survivor: Server, victim: Server):
    """It had ended before the process was killed."""
    body = BODIES[CHAT] | {"n": 1, "max_tokens": 30}
    expected = whole(victim, CHAT, body)
    stream = json.loads(expected[0])["id"].removeprefix("chatcmpl-")
    kill(victim)
    assert content(follow(survivor, stream, "")) == content(expected)


def test_a_process_that_lives_keeps_its_answers(survivor: Server, victim: Server):
    """Others tell clients when to try again. Once it is killed, they show the timeline and stop the answer."""
    stream, _ = begin_answer(victim, CHAT, BODIES[CHAT] | {"n": 1, "max_tokens": 2000}, 5)
    for method, path in (("GET", "streams"), ("DELETE", "streams"), ("GET", "requests")):
        answer = httpx.request(method, f"{survivor.url}/v1/{path}/{stream}", timeout=HANG_SECONDS)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json()["error"]["code"] == "held_elsewhere"
    kill(victim)
    timeline = httpx.get(f"{survivor.url}/v1/requests/{stream}", timeout=HANG_SECONDS).json()
    assert timeline["state"] != "ended" and timeline["completion_tokens"] >= 5
    assert httpx.delete(f"{survivor.url}/v1/streams/{stream}", timeout=HANG_SECONDS).status_code == 204
    timeline = httpx.get(f"{survivor.url}/v1/requests/{stream}", timeout=HANG_SECONDS).json()
    assert timeline["state"] == "ended" and timeline["completion_tokens"] < 2000


def test_only_the_owner_gets_an_answer_of_another_process(options: tuple[str, ...]):
    """Others get the answer for a stream that does not exist, before and after the process is killed."""
    keys = ("--api-key", f"{ANNA},{BERT}")
    first, second = Server.start(*options, *keys), Server.start(*options, *keys)

    def status(key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.stream("GET", url, headers=headers, timeout=HANG_SECONDS) as response:
            return response.status_code

    try:
        body = BODIES[CHAT] | {"n": 1, "max_tokens": 2000}
        headers = RESUME | {"Authorization": f"Bearer {ANNA}"}
        with httpx.stream("POST", f"{first.url}{CHAT}", json=body, headers=headers, timeout=HANG_SECONDS) as response:
            url = f"{second.url}/v1/streams/{response.headers['X-Carousel-Stream']}"
            next(response.iter_lines())
            assert (status(BERT), status(ANNA)) == (404, 503)
            kill(first)
        assert (status(BERT), status(ANNA), status(BERT)) == (404, 200, 404)
    finally:
        first.stop()
        second.stop()
