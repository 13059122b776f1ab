"""Stored responses, conversations and chat completions across the end of the API process, in a second one."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Server
from tests.e2e.test_journal import CHAT, RESPONSES, STORY, frames, kill, start  # noqa: F401  (a fixture)
from tests.limits import HANG_SECONDS

CONVERSATIONS = "/v1/conversations"
TURN = {"max_output_tokens": 150, "ignore_eos": True, "seed": 5}
INPUTS = ("Tell me a story about a fox.", "And then?", "How did it end?")


def client(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=HANG_SECONDS)


def ask(server: Server, method: str, path: str, **fields: Any) -> Any:
    """Return the JSON of an answer, once answers of an earlier process are restored."""
    deadline = time.monotonic() + HANG_SECONDS
    with client(server) as http:
        while (answer := http.request(method, path, **fields)).status_code == 503 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert answer.status_code == 200, answer.text
    return answer.json()


def respond(server: Server, given: str, **fields: Any) -> Any:
    return ask(server, "POST", RESPONSES, json={"input": given, **TURN, **fields})


def ended(server: Server, response_id: str) -> Any:
    """Return a response once it has ended."""
    deadline = time.monotonic() + HANG_SECONDS
    while (body := ask(server, "GET", f"{RESPONSES}/{response_id}"))["status"] in ("queued", "in_progress"):
        assert time.monotonic() < deadline
    return body


def begun(server: Server, path: str, body: dict[str, Any], events: int) -> list[dict[str, Any]]:
    """Return the first events of an answer, and leave it running."""
    with httpx.stream("POST", f"{server.url}{path}", json=body | {"stream": True}, timeout=HANG_SECONDS) as response:
        assert response.status_code == 200, response.read()
        reading = frames(response)
        found = [json.loads(next(reading)[1]) for _ in range(events)]
        kill(server)
        return found


def followed(server: Server, response_id: str, after: int) -> list[dict[str, Any]]:
    """Return the events of a response after a number."""
    ask(server, "GET", f"{RESPONSES}/{response_id}")
    url = f"{server.url}{RESPONSES}/{response_id}?stream=true&starting_after={after}"
    with httpx.stream("GET", url, timeout=HANG_SECONDS) as response:
        assert response.status_code == 200, response.read()
        return [json.loads(data) for _, data in frames(response)]


def text(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def streamed_text(events: list[dict[str, Any]]) -> str:
    return "".join(event.get("delta", "") for event in events)


def database(path: Path) -> Any:
    return closing(sqlite3.connect(path / "store.db", isolation_level=None))


def test_a_chain_goes_on_after_a_kill_in_its_middle(start: Callable[..., Server]):  # noqa: F811
    """Its three turns are those of a chain that nothing disturbs, and the second is stored at its end."""
    first = start()
    expected = [respond(first, INPUTS[0])]
    for given in INPUTS[1:]:
        expected.append(respond(first, given, previous_response_id=expected[-1]["id"]))
    one = respond(first, INPUTS[0])
    body = {"input": INPUTS[1], **TURN, "previous_response_id": one["id"]}
    before = begun(first, RESPONSES, body, 60)
    second = start()
    identity = before[0]["response"]["id"]
    after = followed(second, identity, before[-1]["sequence_number"])
    assert [event["sequence_number"] for event in before + after] == list(range(len(before + after)))
    assert streamed_text(before + after) == text(expected[1])
    stored = ended(second, identity)
    assert stored == after[-1]["response"] and stored["previous_response_id"] == one["id"]
    three = respond(second, INPUTS[2], previous_response_id=identity)
    assert [text(each) for each in (one, stored, three)] == [text(each) for each in expected]
    kill(second)
    third = start()
    assert ended(third, identity) == stored
    again = respond(third, INPUTS[2], previous_response_id=identity)
    assert text(again) == text(expected[2]) and again["usage"]["input_tokens"] == three["usage"]["input_tokens"]


def test_a_conversation_gets_the_items_of_a_killed_background_response_once(start: Callable[..., Server]):  # noqa: F811
    """In the order in which one that nothing disturbs has them."""
    first = start()
    kept: list[list[str]] = []
    for is_killed in (False, True):
        conversation = ask(first, "POST", CONVERSATIONS, json={})["id"]
        server = first
        for number, given in enumerate(INPUTS):
            body = respond(server, given, conversation=conversation, background=True)
            if is_killed and number == 1:
                while not text(body):
                    body = ask(server, "GET", f"{RESPONSES}/{body['id']}")
                kill(server)
                server = start()
            assert ended(server, body["id"])["status"] == "incomplete"
        items = ask(server, "GET", f"{CONVERSATIONS}/{conversation}/items?order=asc")["data"]
        assert len({item["id"] for item in items}) == len(items) == 2 * len(INPUTS)
        kept.append([item["content"][0]["text"] for item in items])
        if is_killed:
            kill(server)
            again = ask(start(), "GET", f"{CONVERSATIONS}/{conversation}/items?order=asc")["data"]
            assert again == items
    assert kept[0] == kept[1]


def test_a_stored_chat_completion_goes_on(start: Callable[..., Server]):  # noqa: F811
    """It can be read once it has ended."""
    first = start()
    body = {"messages": STORY, "seed": 7, "max_tokens": 400, "ignore_eos": True, "store": True, "metadata": {"a": "b"}}
    expected = ask(first, "POST", CHAT, json=body)
    before = begun(first, CHAT, body, 100)
    second = start()
    path = f"{CHAT}/{before[0]['id']}"
    with client(second) as http:
        while (answer := http.get(path)).status_code != 200:
            assert answer.status_code in (404, 503)
    assert answer.json()["choices"] == expected["choices"] and answer.json()["metadata"] == {"a": "b"}
    assert ask(second, "GET", f"{path}/messages")["data"][0]["content"] == STORY[0]["content"]
    assert ask(second, "GET", f"{CHAT}/{expected['id']}")["choices"] == expected["choices"]


def test_an_answer_whose_context_is_gone_ends_and_can_be_read(start: Callable[..., Server], tmp_path: Path):  # noqa: F811
    first = start()
    one = respond(first, INPUTS[0])
    body = {"input": INPUTS[1], **TURN, "previous_response_id": one["id"]}
    before = begun(first, RESPONSES, body, 50)
    with database(tmp_path) as connection:
        connection.execute("DELETE FROM record WHERE id = ?", (one["id"],))
    second = start()
    identity = before[0]["response"]["id"]
    found = ended(second, identity)
    assert (found["status"], found["error"]["type"]) == ("failed", "server_restarted")
    assert "context is no longer stored" in found["error"]["message"]
    assert found["previous_response_id"] == one["id"] and found["max_output_tokens"] == TURN["max_output_tokens"]
    kill(second)
    assert ended(start(), identity) == found


@pytest.mark.parametrize("path", [RESPONSES, CHAT])
def test_a_record_without_a_journaled_request_ends(start: Callable[..., Server], tmp_path: Path, path: str):  # noqa: F811
    """A response as failed; a chat completion has nothing that could be read."""
    first = start()
    body = {"messages": STORY, "store": True, "ignore_eos": True, "max_tokens": 400}
    if path == RESPONSES:
        body = {"input": INPUTS[0], **TURN}
    before = begun(first, path, body, 50)
    with database(tmp_path) as connection:
        connection.execute("DELETE FROM request")
    second = start()
    if path == RESPONSES:
        identity = before[0]["response"]["id"]
        found = ask(second, "GET", f"{RESPONSES}/{identity}")
        assert (found["id"], found["status"], found["error"]["type"]) == (identity, "failed", "server_restarted")
        assert ask(second, "GET", f"{RESPONSES}/{identity}/input_items")["data"][0]["content"][0]["text"] == INPUTS[0]
    with client(second) as http:
        while http.post(CHAT, json={"messages": STORY, "max_tokens": 1}).status_code != 200:
            pass
        with database(tmp_path) as connection:
            kinds = connection.execute("SELECT kind FROM record WHERE body = x''").fetchall()
        assert kinds == [] or path == CHAT
