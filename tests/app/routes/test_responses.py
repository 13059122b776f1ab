"""`/v1/responses` and its routes on the real application, with a fake engine on a thread."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from openai.types.responses import Response
from starlette.testclient import TestClient, WebSocketDenialResponse

from app.admission.tenants import tenant_of_key
from app.protocols.answers import OPENAI
from app.routes.responses import stream
from app.streams.stream_log import Delta
from tests.app.routes.test_http import CHAT, make, ready

RESPONSES = "/v1/responses"
BODY = {"input": "hi", "max_output_tokens": 3}
LONG = {"input": "hi", "max_output_tokens": 10_000}
RESUME = {"X-Carousel-Resume": "60"}


@pytest.fixture(scope="module")
def http():
    with make() as client:
        yield ready(client)


def events(answer) -> list[dict]:
    """Return the events of a stream that has ended."""
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n") if line.startswith("data: ")]


def new_stream(http: TestClient, **fields) -> tuple[str, list[dict]]:
    """Return the id of a new response, and the events of its stream."""
    found = events(http.post(RESPONSES, json=BODY | {"stream": True} | fields, headers=RESUME))
    return found[-1]["response"]["id"], found


def test_a_response_is_created_and_can_be_read_again(http):
    """It is stored unless the request says otherwise."""
    answer = http.post(RESPONSES, json=BODY)
    body = answer.json()
    assert answer.status_code == 200 and body["id"] == f"resp_{answer.headers['x-carousel-stream']}"
    response = Response.model_validate(body, strict=True)
    assert (response.status, response.usage.output_tokens, response.max_output_tokens) == ("incomplete", 3, 3)
    assert response.store is True
    again = http.get(f"{RESPONSES}/{body['id']}")
    assert again.json() == body and again.headers["x-carousel-stream"] == answer.headers["x-carousel-stream"]
    assert http.get(f"/v1/requests/{body['id']}").json()["state"] == "ended"


def test_a_stream_ends_after_its_last_event(http):
    """There is no [DONE], and no id: OpenAI's library takes a comment after an id for an empty event."""
    answer = http.post(RESPONSES, json=BODY | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert {line.partition(" ")[0] for line in answer.text.splitlines()} == {"event:", "data:", ""}
    resumable = http.post(RESPONSES, json=BODY | {"stream": True}, headers=RESUME).text
    assert {line.partition(" ")[0] for line in resumable.splitlines()} - {":"} == {"event:", "data:", ""}
    found = events(answer)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[0]["type"] == "response.created" and found[-1]["type"] == "response.incomplete"
    assert "[DONE]" not in answer.text


def test_a_stream_is_resumed_by_number(http):
    """The position is exclusive; after the last event nothing follows."""
    identity, found = new_stream(http)
    path = f"{RESPONSES}/{identity}?stream=true"
    assert events(http.get(path)) == found
    assert events(http.get(f"{path}&starting_after=3")) == found[4:]
    assert events(http.get(f"{path}&starting_after=0")) == found[1:]
    ended = http.get(f"{path}&starting_after={len(found) - 1}")
    assert (ended.status_code, ended.content) == (200, b"")
    assert ended.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=1000", "starting_after"),
        ("starting_after=1", "starting_after"),
        ("stream=yes", "stream"),
        ("stream=true&include_obfuscation=true", "include_obfuscation"),
    ],
)
def test_a_position_that_cannot_be_served_is_refused(http, query: str, param: str):
    """It is malformed, in the future, or of no use."""
    identity, _ = new_stream(http)
    answer = http.get(f"{RESPONSES}/{identity}?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_a_running_response_is_cancelled(http):
    """It stays readable with its output until then; cancelling an ended one changes nothing."""
    with http.stream("POST", RESPONSES, json=LONG | {"stream": True}, headers=RESUME) as running:
        identity = f"resp_{running.headers['x-carousel-stream']}"
        cancelled = http.post(f"{RESPONSES}/{identity}/cancel")
        found = events_of(running)
    response = Response.model_validate(cancelled.json(), strict=True)
    assert response.status == "cancelled" and response.id == identity and response.incomplete_details is None
    assert (found[-1]["type"], found[-1]["response"]["status"]) == ("response.incomplete", "cancelled")
    assert found[-1]["response"] == cancelled.json() == http.post(f"{RESPONSES}/{identity}/cancel").json()


def events_of(answer) -> list[dict]:
    return [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: ")]


def test_a_deleted_response_cannot_be_read(http):
    """One that runs ends first; its readers receive the end."""
    identity, _ = new_stream(http)
    deleted = http.delete(f"{RESPONSES}/{identity}")
    assert deleted.json() == {"id": identity, "object": "response", "deleted": True}
    assert http.get(f"{RESPONSES}/{identity}").status_code == 404
    registry = http.app.state.service.registry
    with http.stream("POST", RESPONSES, json=LONG | {"stream": True}, headers=RESUME) as running:
        stream = running.headers["x-carousel-stream"]
        size = registry._size
        assert http.delete(f"{RESPONSES}/resp_{stream}").status_code == 200
        assert events_of(running)[-1]["response"]["status"] == "cancelled"
    assert registry.get_any_owner(stream) is None and registry._size == size
    assert http.delete(f"{RESPONSES}/resp_{stream}").status_code == 404


@pytest.mark.parametrize(
    ("method", "suffix"), [("GET", ""), ("GET", "?stream=true"), ("DELETE", ""), ("POST", "/cancel")]
)
def test_an_unknown_response_is_not_found(http, method: str, suffix: str):
    """An answer of another protocol is unknown here."""
    chat = http.post(CHAT, json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).json()["id"]
    for identity in ("resp_nothing", "x" * 200, chat):
        answer = http.request(method, f"{RESPONSES}/{identity}{suffix}")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (404, "response_not_found", "response_id")


def test_a_response_of_another_key_is_not_found():
    """It looks like an unknown one, and no route works without a key."""
    with make(tenants=(tenant_of_key("alice"), tenant_of_key("bob"))) as client:
        ready(client)
        alice, bob = ({"Authorization": f"Bearer {name}"} for name in ("alice", "bob"))
        identity = client.post(RESPONSES, json=BODY, headers=alice).json()["id"]
        routes = [("GET", ""), ("DELETE", ""), ("POST", "/cancel")]
        for method, suffix in routes:
            assert client.request(method, f"{RESPONSES}/{identity}{suffix}", headers=bob).status_code == 404
        for method, suffix in [*routes, ("GET", "/input_items")]:
            assert client.request(method, f"{RESPONSES}/{identity}{suffix}").status_code == 401
        for path in (RESPONSES, f"{RESPONSES}/input_tokens"):
            assert client.post(path, json=BODY).status_code == 401
        assert client.get(f"{RESPONSES}/{identity}", headers=alice).status_code == 200


def test_the_tokens_of_an_input_are_counted(http):
    """The number is that of the usage of a response to the same input."""
    fields = {"input": [{"role": "user", "content": "hello"}], "instructions": "Be brief."}
    counted = http.post(f"{RESPONSES}/input_tokens", json=fields | {"model": "fake"}).json()
    used = http.post(RESPONSES, json=BODY | fields).json()["usage"]["input_tokens"]
    assert counted == {"object": "response.input_tokens", "input_tokens": used}
    wrong = http.post(f"{RESPONSES}/input_tokens", json={"input": "hi", "temperature": 0})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "temperature")
    assert http.post(f"{RESPONSES}/input_tokens", json={"input": "hi", "model": "x"}).status_code == 404
    context = http.app.state.service.info.max_model_len
    long = http.post(f"{RESPONSES}/input_tokens", json={"input": "a" * (17 * context)}).json()["error"]
    assert (long["param"], long["code"]) == ("input", "context_length_exceeded")


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"input": "a" * 20_000}, "input", "the prompt has"),
        ({"min_tokens": 9}, "min_tokens", "max_output_tokens"),
    ],
)
def test_the_engine_s_refusal_has_the_protocol_s_names(http, fields: dict, param: str, message: str):
    """Clients know no `prompt` and no `max_tokens` here."""
    error = http.post(RESPONSES, json=BODY | fields).json()["error"]
    assert error["param"] == param and message in error["message"]
    assert "max_tokens" not in error["message"].replace("max_output_tokens", "")


def test_a_template_s_refusal_has_the_protocol_s_name(http, monkeypatch):
    """The conversation is called input here."""
    template = "{{ raise_exception('no') }}"
    service = http.app.state.service
    text = type(service.text)(service.text.tokenizer, template, {}, frozenset())
    monkeypatch.setattr(service.prompts, "text", text)
    error = http.post(RESPONSES, json=BODY).json()["error"]
    assert (error["param"], error["message"], error["code"]) == ("input", "input: no", "template_refused")


def test_a_limit_beyond_the_context_is_reduced(http):
    """The response has the effective limit."""
    context = http.app.state.service.info.max_model_len
    prompt = http.post(RESPONSES, json=BODY).json()["usage"]["input_tokens"]
    with http.stream("POST", RESPONSES, json=LONG | {"max_output_tokens": 10**6, "stream": True}) as running:
        created = json.loads(next(line for line in running.iter_lines() if line.startswith("data: "))[6:])
    assert created["response"]["max_output_tokens"] == context - prompt


@pytest.mark.parametrize("headers", [{}, RESUME])
def test_a_reader_that_resumes_gets_the_status_on_request(http, headers: dict):
    """Some clients cannot parse comments."""
    with http.stream("POST", RESPONSES, json=LONG | {"stream": True}, headers=RESUME) as running:
        identity = f"resp_{running.headers['x-carousel-stream']}"
        lines = running.iter_lines()
        while not next(lines).startswith("event: response.output_text.delta"):
            pass
        with http.stream("GET", f"{RESPONSES}/{identity}?stream=true", headers=headers) as second:
            more = second.iter_lines()
            if headers:  # the status follows what has been written, however much that is
                assert any(line.startswith(": carousel") for line in more)
            else:
                assert not any(next(more).startswith(":") for _ in range(300))
        http.delete(f"{RESPONSES}/{identity}")


async def test_each_reader_has_an_encoder_and_the_opening_is_only_sent_from_the_beginning(http):
    """A reader that resumes has received the opening."""
    identity = http.post(CHAT, json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}).json()["id"]
    generation = http.app.state.service.registry.get_any_owner(identity.removeprefix("chatcmpl-"))
    encoder = SimpleNamespace(opening=lambda log: b"opening", encode=lambda log, items: b"records", wire=OPENAI)
    readers: list[bool] = []
    shared = SimpleNamespace(for_reader=lambda resumes: readers.append(resumes) or encoder)
    chunks = [
        [chunk async for chunk in stream(generation, after, shared, resumes=after == 1)._content] for after in (0, 1)
    ]
    assert readers == [False, True]
    assert chunks == [[b"opening", b"records"], [b"records"]]


def test_a_response_without_a_reader_is_given_up(http):
    """It has failed then, and the retry is left to the client."""
    with http.stream("POST", RESPONSES, json=LONG | {"stream": True}) as running:
        identity = f"resp_{running.headers['x-carousel-stream']}"
        log = http.app.state.service.registry.get_any_owner(identity.removeprefix("resp_")).log
        next(running.iter_lines())
    while not log.is_closed:
        http.get("/livez")
    response = http.get(f"{RESPONSES}/{identity}").json()
    assert response["status"] == "failed" and response["error"]["type"] == "abandoned"


def test_the_stream_of_a_response_has_one_address(http):
    """Its events have no ids, by which /v1/streams resumes; stopping works there too."""
    identity, _ = new_stream(http)
    stream = identity.removeprefix("resp_")
    error = http.get(f"/v1/streams/{stream}").json()["error"]
    assert error["code"] == "stream_not_found" and f"/v1/responses/{identity}?stream=true" in error["message"]
    assert http.delete(f"/v1/streams/{stream}").status_code == 204


def test_methods_that_a_route_lacks_are_refused(http):
    """A response is created by POST only."""
    assert http.get(RESPONSES).status_code == 405
    assert http.get(f"{RESPONSES}/resp_1/cancel").status_code == 405
    assert http.get(f"{RESPONSES}/resp_1/nothing").status_code == 404


def test_a_long_response_is_read_in_a_thread(http):
    """Its body equals that of the last event."""
    identity, found = new_stream(http, max_output_tokens=600)
    log = http.app.state.service.registry.get_any_owner(identity.removeprefix("resp_")).log
    assert sum(isinstance(record, Delta) for record in log.records) > 64
    assert http.get(f"{RESPONSES}/{identity}").json() == found[-1]["response"]


def exchange(size: int, letter: str = "a") -> list[dict]:
    return [{"role": "user", "content": letter * size}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    "items",
    [
        [item for _ in range(60) for item in exchange(500)],
        [item for size in (9000, 6000, 3000, 10) for item in exchange(size)],
        [*exchange(400_000), *exchange(300_000), *exchange(10)],
        [*(item for _ in range(20) for item in exchange(1000, "hell")), *exchange(900, "\U0001f600")],
    ],
)
def test_a_long_conversation_is_truncated_on_request(http, items: list[dict]):
    """Its oldest turns are dropped until there is room for an answer too. Without the request, it is refused."""
    body = BODY | {"input": [*items, {"role": "user", "content": "last"}]}
    assert http.post(RESPONSES, json=body).json()["error"]["code"] == "context_length_exceeded"
    answer = http.post(RESPONSES, json=body | {"truncation": "auto"}).json()
    assert (answer["truncation"], answer["usage"]["output_tokens"]) == ("auto", 3)
    generation = http.app.state.service.registry.get_any_owner(answer["id"].removeprefix("resp_"))
    prompt = http.app.state.service.text.decode(generation.request.prompt)
    assert prompt.endswith("[assistant]b[user]last") and items[-2]["content"] in prompt


@pytest.mark.parametrize(
    "items",
    [
        [*exchange(10), {"role": "user", "content": "a" * 20_000}],
        [{"role": "user", "content": "a" * 400_000}],
        [{"role": "system", "content": "s" * 20_000}, *exchange(10), {"role": "user", "content": "last"}],
    ],
)
def test_a_conversation_that_cannot_be_truncated_enough_is_refused(http, items: list[dict]):
    """System turns and the last turns alone are too long."""
    answer = http.post(RESPONSES, json=BODY | {"input": items, "truncation": "auto"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")


def test_a_conversation_that_fits_is_not_truncated(http):
    """The request changes nothing then."""
    items = [*exchange(10), {"role": "user", "content": "last"}]
    used = [http.post(RESPONSES, json=BODY | {"input": items, "truncation": t}).json()["usage"] for t in ("auto", None)]
    assert used[0]["input_tokens"] == used[1]["input_tokens"]
    counted = http.post(f"{RESPONSES}/input_tokens", json={"input": items, "truncation": "auto"})
    assert counted.json()["error"]["param"] == "truncation"


@pytest.mark.parametrize("path", ["/v1/responses/resp_a1", "/v1/streams/a1"])
def test_an_answer_that_is_being_restored_is_not_reported_as_unknown(http, path: str):
    """Its client comes back a moment after the start of the server."""
    registry = http.app.state.service.registry
    registry.awaited.add("a1")
    try:
        answer = http.get(path)
    finally:
        registry.awaited.discard("a1")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/responses"])
def test_no_websocket_is_opened_before_answers_are_restored(http, path: str):
    """Its client, which would be refused every answer until then, comes back in a moment."""
    registry = http.app.state.service.registry
    registry.awaited.add("a1")
    try:
        own = {"Host": "localhost"}
        with pytest.raises(WebSocketDenialResponse) as refused, http.websocket_connect(path, headers=own):
            raise AssertionError("a WebSocket was opened")
    finally:
        registry.awaited.discard("a1")
    assert (refused.value.status_code, refused.value.headers["retry-after"]) == (503, "1")
