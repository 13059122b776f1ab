"""Stored responses over HTTP: chains, references, conversations and background answers."""

from __future__ import annotations

import json
import random
import threading
from contextlib import contextmanager
from typing import Any

import pytest
from openai.types.responses import Response
from openai.types.responses.response_item_list import ResponseItemList
from starlette.testclient import TestClient

from app.admission.tenants import tenant_of_key
from app.conversations.memory_store import MemoryStore
from app.conversations.shelf import Limits
from app.conversations.store import StoredResponse
from app.store.conversations import FileStore
from tests.app.routes.test_http import make, ready
from tests.app.routes.test_responses import BODY, LONG, RESPONSES, RESUME, events
from tests.profiles import examples

CONVERSATIONS = "/v1/conversations"
USER = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module", params=["memory", "file"])
def http(request, tmp_path_factory):
    with with_store(request.param, tmp_path_factory) as client:
        yield ready(client)


@pytest.fixture(scope="module", params=["memory", "file"])
def with_keys(request, tmp_path_factory):
    with with_store(request.param, tmp_path_factory, tenants=(tenant_of_key("alice"), tenant_of_key("bob"))) as client:
        yield ready(client)


def with_store(kind: str, tmp_path_factory, **options: Any) -> TestClient:
    """Return a client of a server that stores in memory, or in a file with almost no memory."""
    if kind == "memory":
        return make(**options)
    client = make(**options, store=tmp_path_factory.mktemp("store") / "s.db")
    service = client.app.state.service
    service.store = FileStore(service.state_file.records, MemoryStore(Limits(records=1)))
    return client


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def create(http: TestClient, given: Any = "hi", **fields: Any) -> dict[str, Any]:
    """Return a new response."""
    answer = http.post(RESPONSES, json={"input": given, "max_output_tokens": 3, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def forget_streams(http: TestClient) -> None:
    """Drop all streams that have ended, as happens after --resume-ttl."""
    registry = http.app.state.service.registry
    for generation in list(registry._finished.values()):
        registry.remove(generation)


def prompt_of(http: TestClient, response: dict[str, Any]) -> tuple[int, ...]:
    """Return the token ids of the prompt of a response whose stream is kept."""
    stream = response["id"].removeprefix("resp_")
    return http.app.state.service.registry.get_any_owner(stream).request.prompt


def error_of(http: TestClient, **fields: Any) -> tuple[int, str | None, str]:
    """Return status, parameter and code of a refusal."""
    answer = http.post(RESPONSES, json={"input": "hi", **fields})
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]


def call_items(name: str) -> list[dict[str, Any]]:
    return [
        {"type": "function_call", "call_id": name, "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": name, "output": "done"},
    ]


# Items of every kind that a prompt can have; each list is an input after any other.
INPUTS: tuple[Any, ...] = (
    "hello",
    [USER],
    [{"role": "developer", "content": "Be kind."}, USER],
    [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
    [{"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]}, USER],
    [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, USER],
    [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "file_id": "x"}]}, USER],
    [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"}, USER],
    [*call_items("one"), USER],
    [{"type": "web_search_call", "id": "ws_1", "status": "completed"}, USER],
    [{"type": "image_generation_call", "id": "ig_1", "result": "AAAA"}, USER],
)


@pytest.mark.parametrize("seed", range(examples(9)))
def test_a_chain_gives_the_prompt_of_the_same_items_sent_by_hand(http, seed: int):
    """The same holds for a conversation and for references to the items."""
    chance = random.Random(seed)
    conversation = http.post(CONVERSATIONS, json={}).json()["id"]
    by_hand: list[dict[str, Any]] = []
    referred: list[dict[str, Any]] = []
    previous: dict[str, Any] = {}
    for _ in range(4):
        given = chance.choice(INPUTS)
        items = [USER] if given == "hello" else given
        chained = create(http, given, **previous)
        talked = create(http, given, conversation={"id": conversation})
        plain = create(http, [*by_hand, *items], store=False)
        linked = create(http, [*referred, *items])
        assert prompt_of(http, chained) == prompt_of(http, talked) == prompt_of(http, plain) == prompt_of(http, linked)
        by_hand += [*items, *plain["output"]]
        listed = http.get(f"{RESPONSES}/{linked['id']}/input_items?order=asc&limit=100").json()["data"]
        referred = [{"type": "item_reference", "id": each["id"]} for each in [*listed, *linked["output"]]]
        previous = {"previous_response_id": chained["id"]}


def test_the_fields_of_a_response_are_those_that_hold(http):
    """They are in the response, its events and what is read later."""
    first = create(http, metadata={"a": "b"})
    shown = ("store", "previous_response_id", "conversation", "background")
    assert [first[name] for name in shown] == [True, None, None, False]
    second = create(http, previous_response_id=first["id"], store=False)
    assert [second[name] for name in shown] == [False, first["id"], None, False]
    conversation = http.post(CONVERSATIONS, json={}).json()["id"]
    answer = http.post(RESPONSES, json=BODY | {"stream": True, "conversation": conversation})
    for event in (events(answer)[0], events(answer)[-1]):
        assert event["response"]["conversation"] == {"id": conversation}
    assert Response.model_validate(first, strict=True).store is True


def test_a_response_is_read_after_its_stream(http):
    """Its events are not kept that long."""
    body = create(http, metadata={"a": "b"})
    forget_streams(http)
    assert http.get(f"{RESPONSES}/{body['id']}").json() == body
    assert http.post(f"{RESPONSES}/{body['id']}/cancel").json() == body
    events_gone = http.get(f"{RESPONSES}/{body['id']}?stream=true")
    assert (events_gone.status_code, events_gone.json()["error"]["code"]) == (404, "events_not_kept")
    assert http.delete(f"{RESPONSES}/{body['id']}").json()["deleted"] is True
    assert http.get(f"{RESPONSES}/{body['id']}").status_code == 404
    assert http.delete(f"{RESPONSES}/{body['id']}").status_code == 404


def test_a_response_that_is_not_stored_ends_with_its_stream(http):
    """It cannot be continued either, and its input is nowhere."""
    body = create(http, store=False)
    assert http.get(f"{RESPONSES}/{body['id']}").json() == body
    assert http.get(f"{RESPONSES}/{body['id']}/input_items").status_code == 404
    assert error_of(http, previous_response_id=body["id"]) == (
        400,
        "previous_response_id",
        "previous_response_not_found",
    )
    forget_streams(http)
    assert http.get(f"{RESPONSES}/{body['id']}").status_code == 404


def test_instructions_are_not_inherited(http):
    """Each request has its own."""
    first = create(http, "hello", instructions="Be brief.")
    second = create(http, "hello", previous_response_id=first["id"])
    by_hand = create(http, [USER, *first["output"], USER])
    assert prompt_of(http, second) == prompt_of(http, by_hand)


def test_a_chain_outlives_its_deleted_responses(http):
    """The items of a deleted response stay in those that continue it."""
    first = create(http, "hello")
    second = create(http, "hello", previous_response_id=first["id"])
    http.delete(f"{RESPONSES}/{first['id']}")
    third = create(http, "hello", previous_response_id=second["id"])
    by_hand = create(http, [USER, *first["output"], USER, *second["output"], USER])
    assert prompt_of(http, third) == prompt_of(http, by_hand)


def test_a_response_in_progress_is_not_continued(http):
    """Once it was cancelled, its output until then is part of the chain."""
    with http.stream("POST", RESPONSES, json=LONG | {"stream": True}, headers=RESUME) as running:
        identity = f"resp_{running.headers['x-carousel-stream']}"
        next(running.iter_lines())
        assert error_of(http, previous_response_id=identity) == (400, "previous_response_id", "response_in_progress")
        output = http.post(f"{RESPONSES}/{identity}/cancel").json()["output"]
    forget_streams(http)
    assert http.get(f"{RESPONSES}/{identity}").json()["status"] == "cancelled"
    chained = create(http, "hello", previous_response_id=identity)
    by_hand = create(http, [{"role": "user", "content": "hi"}, *output, USER])
    assert prompt_of(http, chained) == prompt_of(http, by_hand)


def test_a_long_response_can_be_continued_at_once(http):
    """It is encoded in a thread, and the next request waits for that."""
    first = create(http, "hello", max_output_tokens=600)
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    second = create(http, "hello", previous_response_id=first["id"])
    third = create(http, [USER, reference, USER])
    assert prompt_of(http, second) == prompt_of(http, third)


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"previous_response_id": "resp_x"}, 400, "previous_response_id", "previous_response_not_found"),
        ({"conversation": "conv_x"}, 404, "conversation", "conversation_not_found"),
        ({"conversation": {"id": "conv_x"}}, 404, "conversation", "conversation_not_found"),
        ({"conversation": {"id": "conv_x", "a": 1}}, 400, "conversation.a", "unsupported_parameter"),
        ({"conversation": "conv_x", "previous_response_id": "resp_x"}, 400, "conversation", "invalid_value"),
        ({"conversation": "conv_x", "store": False}, 400, "store", "invalid_value"),
        ({"background": True, "store": False}, 400, "store", "invalid_value"),
        ({"input": [USER, {"type": "item_reference", "id": "msg_x"}]}, 404, "input[1]", "item_not_found"),
        ({"input": [USER, {"id": "msg_x"}]}, 404, "input[1]", "item_not_found"),
        ({"previous_response_id": "x" * 129}, 400, "previous_response_id", "invalid_value"),
        ({"input": [call_items("a")[1]]}, 400, "input[0].call_id", "invalid_value"),
    ],
)
def test_a_context_that_is_not_stored_is_refused(http, fields: dict, status: int, param: str, code: str):
    """The error has the parameter."""
    assert error_of(http, **fields) == (status, param, code)


def test_what_another_key_stored_looks_unknown(with_keys):
    """Ids, items and conversations are those of one key."""
    http, alice, bob = with_keys, key("alice"), key("bob")
    body = http.post(RESPONSES, json=BODY, headers=alice).json()
    conversation = http.post(CONVERSATIONS, json={"items": [USER]}, headers=alice).json()["id"]
    item = http.get(f"{CONVERSATIONS}/{conversation}/items", headers=alice).json()["data"][0]["id"]
    forget_streams(http)
    paths = [
        ("GET", f"{RESPONSES}/{body['id']}"),
        ("DELETE", f"{RESPONSES}/{body['id']}"),
        ("POST", f"{RESPONSES}/{body['id']}/cancel"),
        ("GET", f"{RESPONSES}/{body['id']}/input_items"),
        ("GET", f"{CONVERSATIONS}/{conversation}"),
        ("POST", f"{CONVERSATIONS}/{conversation}"),
        ("DELETE", f"{CONVERSATIONS}/{conversation}"),
        ("GET", f"{CONVERSATIONS}/{conversation}/items"),
        ("POST", f"{CONVERSATIONS}/{conversation}/items"),
        ("GET", f"{CONVERSATIONS}/{conversation}/items/{item}"),
        ("DELETE", f"{CONVERSATIONS}/{conversation}/items/{item}"),
    ]
    for method, path in paths:
        foreign = http.request(method, path, headers=bob, json={"metadata": {}} if method == "POST" else None)
        assert foreign.status_code == 404, path
        name = body["id"] if body["id"] in path else conversation
        unknown = http.request(method, path.replace(name, "x_1"), headers=bob)
        assert foreign.json()["error"]["message"].replace(name, "x_1") == unknown.json()["error"]["message"]
        assert http.request(method, path).status_code == 401
    for fields in (
        {"previous_response_id": body["id"]},
        {"conversation": conversation},
        {"input": [{"type": "item_reference", "id": item}]},
        {"input": [{"type": "item_reference", "id": body["output"][0]["id"]}]},
    ):
        assert http.post(RESPONSES, json=BODY | fields, headers=bob).json()["error"]["code"].endswith("_not_found")
        assert http.post(RESPONSES, json=BODY | fields, headers=alice).status_code == 200


def test_input_items_are_listed_in_pages(http):
    """The newest come first unless `order` is asc, and `after` is exclusive."""
    items = [{"role": "user", "content": f"text {at}"} for at in range(5)]
    identity = create(http, items)["id"]
    path = f"{RESPONSES}/{identity}/input_items"
    whole = http.get(path).json()
    ResponseItemList.model_validate(whole, strict=True)
    texts = [each["content"][0]["text"] for each in whole["data"]]
    assert texts == [f"text {at}" for at in (4, 3, 2, 1, 0)] and whole["has_more"] is False
    assert (whole["first_id"], whole["last_id"]) == (whole["data"][0]["id"], whole["data"][-1]["id"])
    first = http.get(f"{path}?limit=2&order=asc").json()
    assert (first["data"], first["has_more"]) == (whole["data"][::-1][:2], True)
    second = http.get(f"{path}?limit=3&order=asc&after={first['last_id']}").json()
    assert (second["data"], second["has_more"]) == (whole["data"][::-1][2:], False)
    empty = http.get(f"{path}?after={whole['last_id']}").json()
    assert (empty["data"], empty["first_id"]) == ([], None)


@pytest.mark.parametrize(
    ("query", "param"), [("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=x", "after")]
)
def test_a_page_that_does_not_exist_is_refused(http, query: str, param: str):
    """The error has the parameter."""
    identity = create(http)["id"]
    answer = http.get(f"{RESPONSES}/{identity}/input_items?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_background_response_is_polled(http):
    """The request returns before the answer, which needs no reader."""
    started = http.post(RESPONSES, json=LONG | {"max_output_tokens": 200, "background": True}).json()
    assert started["status"] in ("queued", "in_progress") and started["background"] is True
    while (body := http.get(f"{RESPONSES}/{started['id']}").json())["status"] in ("queued", "in_progress"):
        assert Response.model_validate(body, strict=True).id == started["id"]
    assert (body["status"], body["usage"]["output_tokens"]) == ("incomplete", 200)
    assert create(http, previous_response_id=started["id"])["previous_response_id"] == started["id"]


def test_a_background_response_is_followed_again(http):
    """It continues after its first reader has left, without the header that others need."""
    fields = {"stream": True, "background": True, "max_output_tokens": 2000}
    with http.stream("POST", RESPONSES, json=LONG | fields) as running:
        identity = f"resp_{running.headers['x-carousel-stream']}"
        generation = http.app.state.service.registry.get_any_owner(identity.removeprefix("resp_"))
        seen = json.loads(next(line for line in running.iter_lines() if line.startswith("data: "))[6:])
    rest = events(http.get(f"{RESPONSES}/{identity}?stream=true&starting_after={seen['sequence_number']}"))
    assert [event["sequence_number"] for event in rest] == list(range(1, len(rest) + 1))
    assert rest[-1]["response"]["status"] == "incomplete" and generation.completion_tokens == 2000


def test_a_background_response_is_cancelled(http):
    """Its output until then can be read."""
    started = http.post(RESPONSES, json=LONG | {"background": True}).json()
    assert http.post(f"{RESPONSES}/{started['id']}/cancel").json()["status"] == "cancelled"
    forget_streams(http)
    assert http.get(f"{RESPONSES}/{started['id']}").json()["status"] == "cancelled"


def test_a_response_that_failed_is_stored(http):
    """Its error can be read later."""
    started = http.post(RESPONSES, json=LONG | {"background": True}).json()
    generation = http.app.state.service.registry.get_any_owner(started["id"].removeprefix("resp_"))
    http.portal.call(generation.fail, "the test ended it", "internal_error")
    forget_streams(http)
    body = http.get(f"{RESPONSES}/{started['id']}").json()
    assert (body["status"], body["error"]["message"]) == ("failed", "the test ended it")


def test_a_deleted_response_is_not_stored_at_its_end(http):
    """It may still run when it is deleted."""
    started = http.post(RESPONSES, json=LONG | {"background": True}).json()
    assert http.delete(f"{RESPONSES}/{started['id']}").status_code == 200
    assert http.get(f"{RESPONSES}/{started['id']}").status_code == 404


@contextmanager
def limits(http: TestClient, **fields: Any):
    """Replace the store by an empty one with other limits."""
    service = http.app.state.service
    before, service.store = service.store, MemoryStore(Limits(**fields))
    yield service.store
    service.store = before


def test_many_responses_stay_within_the_limit(http):
    """The oldest are dropped, and a response that was dropped cannot be continued."""
    with limits(http, records=5) as store:
        ids = [create(http, max_output_tokens=1)["id"] for _ in range(20)]
        assert store.usage()["responses"].records == 5
        assert error_of(http, previous_response_id=ids[0])[2] == "previous_response_not_found"
        assert create(http, previous_response_id=ids[-1])["status"] == "incomplete"


def test_a_chain_has_as_many_items_as_an_input_may_have(http):
    """The error says how many there are."""
    full = create(http, [USER] * 4095, truncation="auto")
    answer = http.post(RESPONSES, json={"input": "hi", "previous_response_id": full["id"]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "input") and "4097 items" in error["message"]


def test_a_chain_has_as_many_bytes_as_a_body_may_have():
    """Its items take the memory of a body while the prompt is made."""
    with make(max_body=20_000) as client:
        http = ready(client)
        fields = {"truncation": "auto"}
        first = create(http, "a" * 15_000, **fields)
        answer = http.post(RESPONSES, json={"input": "a" * 15_000, "previous_response_id": first["id"], **fields})
        assert answer.status_code == 200
        answer = http.post(RESPONSES, json={"input": "a", "previous_response_id": answer.json()["id"], **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
        assert "at most 20,000" in answer.json()["error"]["message"]


def test_the_tokens_of_a_chain_are_counted(http):
    """The number is that of the usage of the next response."""
    first = create(http)
    fields = {"input": "hello", "previous_response_id": first["id"]}
    counted = http.post(f"{RESPONSES}/input_tokens", json=fields).json()["input_tokens"]
    assert counted == create(http, "hello", previous_response_id=first["id"])["usage"]["input_tokens"]


def test_the_store_is_measured(http):
    """Each kind has its records and bytes."""
    create(http)
    text = http.get("/metrics").text
    assert 'carousel:stored_records{kind="responses",model_name="fake"}' in text
    assert 'carousel:stored_bytes{kind="conversations",model_name="fake"}' in text
    assert 'carousel:stored_records_evicted_total{kind="completions",model_name="fake"}' in text


def test_a_request_waits_for_the_save_of_what_it_continues(http, monkeypatch):
    """The save ends only once the request waits for it."""
    service, may_end = http.app.state.service, threading.Event()
    wait = service.saves.settled

    async def settled(changed: str) -> None:
        may_end.set()
        await wait(changed)

    def save(_: bool) -> None:
        service.store.end_response("resp_slow", b'{"id":"resp_slow"}', ())

    async def start() -> None:
        service.store.add_response(StoredResponse(id="resp_slow", owner="", tenant="", created=0.0), ())
        service.saves.start(["resp_slow"], may_end.wait, save, in_thread=True)

    monkeypatch.setattr(service.saves, "settled", settled)
    http.portal.call(start)
    answer = http.post(RESPONSES, json=BODY | {"previous_response_id": "resp_slow"})
    may_end.set()
    assert answer.status_code == 200, answer.text
