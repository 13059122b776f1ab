"""/v1/conversations over HTTP."""

from __future__ import annotations

import pytest
from openai.types.conversations import Conversation, ConversationItemList
from openai.types.responses import ResponseInputItem
from pydantic import TypeAdapter

from tests.app.routes.test_http import make, ready
from tests.app.routes.test_stored_responses import CONVERSATIONS, USER, call_items, create

LONG_TEXT = "a" * 40_000  # more than is handled on the event loop


@pytest.fixture(scope="module")
def http():
    with make() as client:
        yield ready(client)


def new(http, **fields) -> str:
    """Return the path of a new conversation."""
    return f"{CONVERSATIONS}/{http.post(CONVERSATIONS, json=fields).json()['id']}"


def texts(http, path: str) -> list[str]:
    """Return the texts of the messages of a conversation, the oldest first."""
    items = http.get(f"{path}/items?order=asc&limit=100").json()["data"]
    return [item["content"][0]["text"] for item in items if item["type"] == "message"]


def test_a_conversation_is_created_changed_and_deleted(http):
    """Its metadata is replaced as a whole."""
    created = http.post(CONVERSATIONS, json={"items": [USER], "metadata": {"a": "b"}}).json()
    Conversation.model_validate(created, strict=True)
    path = f"{CONVERSATIONS}/{created['id']}"
    assert http.get(path).json() == created and created["metadata"] == {"a": "b"}
    changed = http.post(path, json={"metadata": {"c": "d"}}).json()
    assert changed == created | {"metadata": {"c": "d"}} == http.get(path).json()
    assert http.delete(path).json() == {"id": created["id"], "object": "conversation.deleted", "deleted": True}
    for method, suffix in (("GET", ""), ("DELETE", ""), ("GET", "/items")):
        assert http.request(method, path + suffix).json()["error"]["code"] == "conversation_not_found"


def test_items_are_added_listed_and_deleted(http):
    """They are normalised, and get ids."""
    path = new(http)
    added = http.post(f"{path}/items", json={"items": [USER, *call_items("a")]}).json()
    ConversationItemList.model_validate(added)
    assert [item["type"] for item in added["data"]] == ["message", "function_call", "function_call_output"]
    for item in added["data"]:
        TypeAdapter(ResponseInputItem).validate_python(item)
        assert http.get(f"{path}/items/{item['id']}").json() == item
    listed = http.get(f"{path}/items").json()
    assert listed["data"] == added["data"][::-1] and listed["has_more"] is False
    gone = f"{path}/items/{added['data'][0]['id']}"
    assert http.delete(gone).json() == http.get(path).json()
    for method in ("GET", "DELETE"):
        assert http.request(method, gone).json()["error"]["code"] == "item_not_found"
    assert len(http.get(f"{path}/items").json()["data"]) == 2


@pytest.mark.parametrize(("first", "tokens"), [("hello", 3), (LONG_TEXT, 3), ("hello", 600)])
def test_a_response_adds_its_items(http, first: str, tokens: int):
    """The input comes before the output, and the next response reads both."""
    path = new(http, items=[{"role": "user", "content": first}])
    fields = {"conversation": path.rpartition("/")[2], "truncation": "auto"}
    body = create(http, "then", max_output_tokens=tokens, **fields)
    answer = body["output"][0]["content"][0]["text"]
    assert texts(http, path) == [first, "then", answer]
    create(http, "more", **fields)
    assert texts(http, path)[:4] == [first, "then", answer, "more"]


def test_a_response_of_a_conversation_is_continued_there(http):
    """`previous_response_id` would leave the earlier items out."""
    identity = new(http).rpartition("/")[2]
    body = create(http, conversation=identity)
    answer = http.post("/v1/responses", json={"input": "hi", "previous_response_id": body["id"]})
    assert answer.status_code == 400 and identity in answer.json()["error"]["message"]


def test_a_result_whose_call_was_deleted_is_refused_by_the_conversation(http):
    """The input is not at fault."""
    path = new(http, items=call_items("a"))
    call = http.get(f"{path}/items?order=asc").json()["data"][0]
    http.delete(f"{path}/items/{call['id']}")
    answer = http.post("/v1/responses", json={"input": "hi", "conversation": path.rpartition("/")[2]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "conversation")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [{"role": "user"}]}, "items[0].content"),
        ({"items": [{"type": "item_reference", "id": "x"}]}, "items[0]"),
        ({"items": [USER] * 4097}, "items"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"title": "x"}, "title"),
    ],
)
def test_a_wrong_field_is_refused_by_its_path(http, body: dict, param: str):
    """Items have the errors of an input."""
    answer = http.post(CONVERSATIONS, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_conversation_has_as_many_items_as_an_input_may_have(http):
    """More are refused before they are added."""
    path = new(http, items=[USER] * 4096)
    answer = http.post(f"{path}/items", json={"items": [USER]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "conversation_full")
    assert http.post(f"{path}/items", json={"items": []}).status_code == 400
