"""Stored chat completions over HTTP."""

from __future__ import annotations

import pytest
from openai.types.chat import ChatCompletion

from app.admission.tenants import tenant_of_key
from tests.app.routes.test_http import BODY, CHAT, make, ready
from tests.app.routes.test_stored_responses import key, with_store


@pytest.fixture(scope="module", params=["memory", "file"])
def http(request, tmp_path_factory):
    with with_store(
        request.param, tmp_path_factory, tenants=(tenant_of_key("alice"), tenant_of_key("bob"), tenant_of_key("carol"))
    ) as client:
        client.headers |= key("alice")
        yield ready(client)


def stored(http, **fields) -> dict:
    """Return a new completion that is stored."""
    answer = http.post(CHAT, json=BODY | {"store": True} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_completion_is_stored_on_request_only(http):
    """An answer without `store: true` cannot be read again."""
    body = stored(http, metadata={"a": "b"})
    assert "store" not in body
    again = http.get(f"{CHAT}/{body['id']}").json()
    assert again == body | {"metadata": {"a": "b"}}
    ChatCompletion.model_validate(again)
    for fields in ({}, {"store": False}):
        identity = http.post(CHAT, json=BODY | fields).json()["id"]
        assert http.get(f"{CHAT}/{identity}").json()["error"]["code"] == "completion_not_found"


def test_a_streamed_completion_is_stored(http):
    """Its body is that of an answer that is not streamed."""
    answer = http.post(CHAT, json=BODY | {"store": True, "stream": True, "max_tokens": 600})
    body = http.get(f"{CHAT}/chatcmpl-{answer.headers['x-carousel-stream']}").json()
    assert body["object"] == "chat.completion" and body["usage"]["completion_tokens"] == 600


def test_metadata_is_replaced_and_a_completion_deleted(http):
    """Neither changes the answer of another completion."""
    body, other = stored(http), stored(http)
    path = f"{CHAT}/{body['id']}"
    assert http.post(path, json={"metadata": {"c": "d"}}).json() == body | {"metadata": {"c": "d"}}
    assert http.get(path).json()["metadata"] == {"c": "d"}
    assert http.delete(path).json() == {"id": body["id"], "object": "chat.completion.deleted", "deleted": True}
    for method, suffix in (("GET", ""), ("DELETE", ""), ("GET", "/messages")):
        assert http.request(method, path + suffix).status_code == 404
    assert http.get(f"{CHAT}/{other['id']}").status_code == 200


@pytest.mark.parametrize("size", [4, 40_000])
def test_the_messages_of_a_request_are_listed(http, size: int):
    """They have ids, and texts in place of media."""
    image = f"data:image/png;base64,{'A' * size}"
    parts = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": image}}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "yes"}, *BODY["messages"]]
    answer = http.post(CHAT, json=BODY | {"store": True, "messages": messages, "max_tokens": 1})
    listed = http.get(f"{CHAT}/{answer.json()['id']}/messages").json()
    assert [message["role"] for message in listed["data"]] == ["user", "assistant", "user"]
    assert len({message["id"] for message in listed["data"]}) == 3
    assert listed["data"][0]["content"].startswith("hi\n[image omitted")


def test_completions_are_listed_for_their_key(http):
    """They are selected by metadata and model, the oldest first."""
    carol = key("carol")
    ids = [
        http.post(CHAT, json=BODY | {"store": True, "metadata": {"at": str(at)}}, headers=carol).json()["id"]
        for at in range(3)
    ]
    listed = http.get(CHAT, headers=carol).json()
    assert [each["id"] for each in listed["data"]] == ids and listed["last_id"] == ids[-1]
    for query, found in (
        ("metadata[at]=1", ids[1:2]),
        ("metadata[at]=9", []),
        ("model=fake", ids),
        ("model=other", []),
        ("order=desc&limit=1", ids[2:]),
        (f"after={ids[0]}", ids[1:]),
    ):
        assert [each["id"] for each in http.get(f"{CHAT}?{query}", headers=carol).json()["data"]] == found, query
    assert http.get(CHAT, headers=key("bob")).json()["data"] == []
    assert http.get(f"{CHAT}/{ids[0]}", headers=key("bob")).status_code == 404


def test_completions_are_not_listed_without_keys():
    """All clients without keys share one owner; an id cannot be guessed."""
    with make() as client:
        http = ready(client)
        body = stored(http)
        assert http.get(CHAT).json()["error"]["code"] == "api_key_required"
        assert http.get(f"{CHAT}/{body['id']}").status_code == 200


def test_a_wrong_method_is_refused_with_all_that_are_allowed(http):
    """A client can both create and list."""
    answer = http.delete(CHAT)
    assert answer.status_code == 405 and set(answer.headers["allow"].split(", ")) >= {"GET", "POST"}


def test_a_completion_that_failed_is_not_stored(http):
    """There is no answer to read."""

    def kept() -> tuple[list[str], int]:
        listed = [each["id"] for each in http.get(CHAT, params={"limit": 100}).json()["data"]]
        return listed, http.app.state.service.store.usage()["completions"].records

    before = kept()
    answer = http.post(CHAT, json=BODY | {"store": True, "deadline_ms": 1, "max_tokens": 5000})
    assert answer.status_code == 504
    assert kept() == before
