"""Wire formats: each path answers in the format of its protocol."""

from __future__ import annotations

import pytest

from app.errors import ApiError
from app.http.sse import EventFormat
from app.protocols import wire_formats
from tests.app.routes.test_http import CHAT, make, ready


def other_error_body(error: ApiError) -> dict:
    return {"type": "error", "error": {"type": f"status_{error.status}", "message": str(error)}}


@pytest.fixture
def other_protocol(monkeypatch):
    """Register the chat route's path for another protocol."""
    monkeypatch.setattr(wire_formats, "WIRE_FORMATS", (EventFormat(CHAT, error_body=other_error_body),))


def test_every_refusal_of_a_path_has_the_format_of_its_protocol(other_protocol, monkeypatch):
    """Wrong fields, a wrong method and internal errors; another path keeps its own format."""
    with make() as client:
        ready(client)
        wrong = client.post(CHAT, json={"messages": []})
        assert wrong.json()["error"].keys() == {"type", "message"} and wrong.json()["error"]["type"] == "status_400"
        assert client.put(CHAT).json()["error"]["type"] == "status_405"
        assert client.post("/v1/completions", json={}).json()["error"]["type"] == "invalid_request_error"
        monkeypatch.setattr(client.app.state.service, "generate", None)
        failed = client.post(CHAT, json={"messages": [{"role": "user", "content": "hi"}]})
        assert (failed.status_code, failed.json()["error"]["type"]) == (500, "status_500")


def last_id(stream: str) -> str:
    return stream.rpartition("\nid: ")[2].partition("\n")[0]


@pytest.mark.parametrize(("path", "rest"), [("/v1/messages", (204, "")), (CHAT, (200, "[DONE]"))])
def test_a_stream_that_was_read_to_its_end_has_the_end_mark_of_its_protocol_left(path: str, rest: tuple[int, str]):
    """Anthropic's protocol has none."""
    body = {"model": "fake", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with make() as client:
        ready(client)
        streamed = client.post(path, json=body, headers={"X-Carousel-Resume": "60"})
        again = client.get(
            f"/v1/streams/{streamed.headers['x-carousel-stream']}", headers={"Last-Event-ID": last_id(streamed.text)}
        )
    assert (again.status_code, again.text.strip().rpartition("data: ")[2]) == rest


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
def test_a_thread_is_refused_with_the_code_that_clients_react_to(thread: dict):
    """Anthropic's libraries then send the whole conversation without it; other refusals have no details."""
    body = {"model": "fake", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
    with make() as client:
        ready(client)
        refused = client.post("/v1/messages?beta=true", json={**body, "thread": thread})
        other = client.post("/v1/messages", json={**body, "max_tokens": 0})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert refused.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}
    assert "details" not in other.json()["error"]


def test_a_path_below_the_root_path_has_the_same_format(other_protocol):
    """The server prepends the root path to every path (ASGI)."""
    with make(root_path="/llm") as client:
        client._transport.root_path = "/llm"
        assert client.post(f"/llm{CHAT}", json={"messages": []}).json()["error"]["type"] == "status_400"
        missing = client.get("/llm/v1/nothing").json()["error"]["message"]
        known = "/v1/chat/completions, /v1/responses, /v1/messages, /v1/completions or /v1/realtime"
        assert missing == f"there is no route /llm/v1/nothing; use {known}"
        missing = client.get("/llm/static/v1/nothing").json()["error"]["message"]
        assert missing == "there is no route /llm/static/v1/nothing"
