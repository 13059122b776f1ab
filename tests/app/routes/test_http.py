"""The routes against unusual requests, on the real application with a fake engine on a thread."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse

from app.admission import refused_keys
from app.admission.tenants import Tenant, anonymous, key_digest, tenant_of_key
from app.engine_client.client import EngineClient
from app.engine_client.member import EngineMember
from app.http.assets import version
from app.http.security import HostMiddleware
from app.routes import anthropic, chat_completions, openai_responses, realtime, text
from app.routes.realtime_session import Session
from app.server import create_app
from app.settings import Settings
from app.store.state_file import StateFile
from app.text.text_model import TextModel
from engine.config import EngineConfig
from engine.load import SlotView, WaitView
from engine.types import ServiceClass
from tests.app.engine_client.test_client import CONFIG, fake_engine
from tests.app.text_models import byte_level

CHAT = "/v1/chat/completions"
GENERATING = (
    chat_completions.chat_completions,
    text.text_completions,
    openai_responses.create_response,
    anthropic.create_message,
    realtime.realtime,
)
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def make(store: Path | None = None, **options) -> TestClient:
    """Return a client of the application, with a store in a file if one is named."""
    settings = Settings(engine=EngineConfig(model="fake"), model_name="fake", **options)
    state_file = None if store is None else StateFile(store)
    app = create_app(settings, EngineClient(CONFIG, fake_engine), byte_level(), state_file=state_file)
    return TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)


def ready(client: TestClient) -> TestClient:
    """Return the client once the engine is ready."""
    for _ in range(1000):
        if client.get("/health").status_code == 200:
            return client
    raise AssertionError("the engine never got ready")


def post_late(client: TestClient, body: dict, headers: dict[str, str] | None = None) -> int:
    """Send a chat whose deadline passes while its body arrives, so that it never has a slot. Returns the status."""

    def content():
        time.sleep(0.01)
        yield json.dumps({**body, "deadline_ms": 1}).encode()

    return client.post(
        CHAT, content=content(), headers={"Content-Type": "application/json", **(headers or {})}
    ).status_code


def fill_queue(client: TestClient) -> None:
    """Fill all slots and the whole queue of class standard."""
    service = client.app.state.service
    for _ in range(CONFIG.max_num_seqs + service.settings.max_queue):
        service.admission.add_waiting("other", ServiceClass.STANDARD, 1)


def from_address(client: TestClient, address: str) -> TestClient:
    """Send the next requests from another address."""
    client._transport.client = (address, 50000)
    return client


@pytest.fixture(scope="module")
def http():
    with make(max_body=50_000) as client:
        yield ready(client)


@pytest.fixture(scope="module")
def http_with_keys():
    with pytest.MonkeyPatch.context() as patch, make(tenants=(tenant_of_key("alice"), tenant_of_key("bob"))) as client:
        patch.setattr(refused_keys, "FREE_ATTEMPTS", 1000)  # the tests try many wrong keys from one address
        yield ready(client)


def test_a_chat_on_the_fake_engine_works(http):
    """The refusals in the following tests therefore have other reasons."""
    answer = http.post(CHAT, json=BODY)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("ids", [[-1], [1 << 32], [5, 1 << 64], [100_000], [*range(100, 140), 100_000]])
def test_invalid_ids_are_refused_and_not_cached(http, ids: list[int]):
    """No invalid id is decoded or cached."""
    known = http.app.state.service.text._alone
    before = dict(known)
    answer = http.post("/v1/completions", json={"prompt": ids, "max_tokens": 2})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt"), answer.text
    assert known == before


def test_a_server_is_ready_once_the_answers_of_an_earlier_process_are_restored():
    """Until then its health is as its requests are answered."""
    with make() as client:
        awaited = ready(client).app.state.service.registry.awaited
        awaited.add("earlier")
        health, chat = client.get("/health"), client.post(CHAT, json=BODY)
        assert health.status_code == chat.status_code == 503 and health.json() == chat.json()
        assert health.headers["Retry-After"] == "1"
        awaited.clear()
        assert client.get("/health").status_code == client.post(CHAT, json=BODY).status_code == 200


def test_after_an_internal_error_the_connection_is_closed(http, monkeypatch):
    """uvicorn closes the connection, and the response announces it."""
    monkeypatch.setattr(EngineClient, "check", lambda *_: 1 / 0)
    answer = http.post(CHAT, json=BODY)
    assert (answer.status_code, answer.headers["connection"]) == (500, "close")


ASSISTANT_MESSAGE = {"role": "assistant", "content": "Hi."}


def user(content) -> list[dict]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("path", "fields", "param", "expected"),
    [
        (
            CHAT,
            {"messages": user([{"type": "image_url", "image_url": {"url": "x"}}])},
            "messages",
            "messages.0.content.0, the type 'image_url' is not supported",
        ),
        (
            CHAT,
            {"messages": user([{"type": "text", "text": "a"}, {"type": "input_audio"}])},
            "messages",
            "content.1, the",
        ),
        (CHAT, {"messages": user(5)}, "messages", "messages.0.content: "),
        (CHAT, {"messages": user("hi"), "stop": list("abcde")}, "stop", "at most 4 items"),
        (CHAT, {"messages": user("hi"), "stop": ["a", None]}, "stop", "stop.1: Input should be a valid string"),
        (
            CHAT,
            {"messages": user("hi"), "max_completion_tokens": 10**6},
            "max_completion_tokens",
            "max_completion_tokens is",
        ),
        (CHAT, {"messages": user("hi"), "max_tokens": 10**6}, "max_tokens", "max_tokens is"),
        (CHAT, {"messages": user("abc" * 12000)}, "messages", "the prompt has"),
        ("/v1/completions", {"prompt": "abc" * 12000}, "prompt", "the prompt has"),
        ("/v1/completions", {"prompt": [1, "a"]}, "prompt", "prompt.1: Input should be a valid integer"),
        ("/v1/completions", {"prompt": [[1, "a"]]}, "prompt", "prompt.0.1: Input should be a valid integer"),
        ("/v1/completions", {"prompt": 7}, "prompt", "prompt: "),
        ("/tokenize", {"prompt": "a", "messages": user("hi")}, "prompt", "cannot be combined with messages"),
        (
            "/tokenize",
            {"add_special_tokens": True, "messages": user("hi")},
            "add_special_tokens",
            "cannot be combined with messages",
        ),
        ("/tokenize", {"messages": []}, "messages", "at least 1 item"),
        ("/tokenize", {}, "prompt", "prompt or messages"),
    ],
)
def test_a_refusal_names_the_field_and_the_fault(http, path: str, fields: dict, param: str, expected: str):
    """The error has the name that the caller used, and a message for the intended type."""
    answer = http.post(path, json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert expected in error["message"] and "constrained" not in error["message"] and "[" not in error["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"null", 400),
        (b'"text"', 400),
        (b'{"messages": NaN}', 400),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', 400),
        (b"[" * 20_000, 400),
        (b'{"messages": ' + b"[" * 20_000, 400),
        (b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": ' + b"9" * 5000 + b"}", 400),
        (b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}', 400),
        (b'{"messages": [{"role": "user", "content": "hi"}], "temperature": Infinity}', 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 1}', 400),
        (b" " * 50_001, 413),
    ],
)
def test_an_invalid_body_is_refused_in_openai_s_shape(http, body: bytes, status: int):
    """The response is never a 500, another framework's error, or a traceback."""
    answer = http.post(CHAT, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in answer.text
    assert "/" not in error["message"].replace("application/json", "")


def test_a_websocket_address_requested_over_http_requires_an_upgrade(http):
    """A proxy that does not forward the upgrade sends such requests."""
    answer = http.get("/v1/realtime")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (426, "upgrade_required")
    assert (answer.headers["upgrade"], answer.headers["connection"]) == ("websocket", "Upgrade")
    assert "WebSocket" in error["message"]


def test_control_characters_in_a_message_are_text(http):
    """A NUL is treated like other characters."""
    answer = http.post(CHAT, json=BODY | {"messages": [{"role": "user", "content": "a\u0000b\u2028c"}]})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/completions", 405),
        ("PUT", "/v1/models", 405),
        ("GET", "/nowhere", 404),
        ("GET", "//v1/models", 404),
        ("GET", "/static/../pyproject.toml", 404),
        ("GET", "/static/%2e%2e/pyproject.toml", 404),
        ("GET", "/v1/models/another/model", 404),
    ],
)
def test_a_wrong_address_or_method_is_an_error_in_openai_s_shape(http, method: str, path: str, status: int):
    """A wrong method has an Allow header."""
    answer = http.request(method, path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["message"] and error["code"] in ("method_not_allowed", "not_found", "model_not_found")
    assert ("allow" in answer.headers) == (status == 405)


def test_a_body_that_curl_sends_without_a_header_is_read(http):
    """`curl -d` calls it a form. A form of another site's page has an Origin, and is refused."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert http.post(CHAT, content=json.dumps(BODY), headers=form).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://127.0.0.1:8000"}, 415),
        ({"Content-Encoding": "gzip"}, 415),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"X-Carousel-Resume": "soon"}, 400),
        ({"X-Carousel-Resume": "-1"}, 400),
    ],
)
def test_an_unsupported_header_is_refused(http, headers: dict[str, str], status: int):
    """The headers concern content, host and origin."""
    answer = http.post(CHAT, content=json.dumps(BODY), headers={"Content-Type": "application/json"} | headers)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("host", "allowed", "requested", "status"),
    [
        ("127.0.0.1", (), "llm.example", 421),
        ("127.0.0.1", ("llm.example", "other.example"), "llm.example", 200),
        ("127.0.0.1", ("llm.example",), "LLM.example:8443", 200),
        ("127.0.0.1", ("llm.example",), "evil.example", 421),
        ("127.0.0.1", ("llm.example",), "localhost:8000", 200),
        ("127.0.0.1", ("*",), "evil.example", 200),
        ("127.0.0.2", (), "evil.example", 421),
        ("127.0.0.2", (), "127.0.0.2:8000", 200),
        ("::1", (), "[::1]:8000", 200),
        ("0.0.0.0", (), "any.example", 421),
        ("0.0.0.0", (), "", 421),
        ("0.0.0.0", (), "10.1.2.3.example", 421),
        ("0.0.0.0", (), "10.1.2.3:8000", 200),
        ("0.0.0.0", (), "[2001:db8::1]:8000", 200),
        ("0.0.0.0", (), "localhost:8000", 200),
        ("0.0.0.0", (), "Box:8000", 200),
        ("0.0.0.0", (), "box.lan", 200),
        ("127.0.0.1", (), "box.lan", 421),
        ("llm.lan", (), "llm.lan", 200),
        ("0.0.0.0", ("llm.example",), "any.example", 421),
        ("0.0.0.0", ("llm.example",), "llm.example", 200),
        ("0.0.0.0", ("*",), "any.example", 200),
    ],
)
def test_a_host_must_be_a_name_of_the_server(
    monkeypatch, host: str, allowed: tuple[str, ...], requested: str, status: int
):
    """A name that a page could rebind to this machine is refused with the option that allows it."""
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr(socket, "getfqdn", lambda: "box.LAN")
    client = make(host=host, allowed_hosts=allowed)
    answer = client.get("/static/js/chat.js", headers={"Host": requested})
    assert answer.status_code == status
    assert status == 200 or "--allowed-hosts" in answer.json()["error"]["message"]


OTHER = "https://chat.example"
# Headers of OpenAI's and Anthropic's libraries in a browser, and this server's own.
SENT_HEADERS = (
    "anthropic-beta,anthropic-dangerous-direct-browser-access,anthropic-version,authorization,content-type,"
    "idempotency-key,openai-organization,openai-project,x-api-key,x-carousel-resume,x-request-id,x-stainless-arch,"
    "x-stainless-helper-method,x-stainless-lang,x-stainless-os,x-stainless-package-version,x-stainless-retry-count,"
    "x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout"
)
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": SENT_HEADERS}


@pytest.mark.parametrize("allowed", [(OTHER,), ("*",), ("http://localhost:3000", OTHER)])
def test_pages_of_an_allowed_origin_may_read_responses(allowed: tuple[str, ...]):
    """Preflight requests are answered, and errors have the header too."""
    with make(allowed_origins=allowed) as client:
        ready(client)
        for path in (CHAT, "/v1/responses", "/v1/messages", "/v1/models"):
            first = client.options(path, headers={"Origin": OTHER, **PREFLIGHT})
            assert first.status_code == 200 and first.headers["Access-Control-Allow-Origin"] in (OTHER, "*")
            assert first.headers["Access-Control-Allow-Headers"] == SENT_HEADERS
        for body, status in ((BODY, 200), (BODY | {"stream": True}, 200), (BODY | {"n": 0}, 400)):
            answer = client.post(CHAT, json=body, headers={"Origin": OTHER})
            assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"] in (OTHER, "*")) == (status, True)
            assert "Access-Control-Allow-Credentials" not in answer.headers
            assert "X-Carousel-Ignored-Tools" in answer.headers["Access-Control-Expose-Headers"]


DENIED = ["websocket.http.response.start", "websocket.http.response.body"]


@pytest.mark.parametrize("allowed", [(), (OTHER,), ("*",), ("https://example",)])
async def test_a_socket_is_open_to_pages_of_an_allowed_origin(allowed: tuple[str, ...]):
    """Other origins are refused before the handshake."""
    events: list[str] = []

    async def app(scope, receive, send) -> None:
        events.append("accepted")

    async def send(message) -> None:
        events.append(message["type"])

    settings = Settings(engine=EngineConfig(model="fake"), model_name="fake", allowed_origins=allowed)
    headers = [(b"host", b"127.0.0.1:8000"), (b"origin", OTHER.encode())]
    await HostMiddleware(app, settings)({"type": "websocket", "path": "/v1/realtime", "headers": headers}, None, send)
    assert events == (["accepted"] if {OTHER, "*"} & set(allowed) else DENIED)


@pytest.mark.parametrize("allowed", [(), ("https://chat.example:8443", "http://chat.example", "https://example")])
def test_pages_of_other_origins_may_not_read_responses(allowed: tuple[str, ...]):
    """No response has a header that would allow them."""
    client = make(allowed_origins=allowed)
    for answer in (
        client.options(CHAT, headers={"Origin": OTHER, **PREFLIGHT}),
        client.post(CHAT, json=BODY, headers={"Origin": OTHER}),
        client.get("/v1/models", headers={"Origin": OTHER}),
    ):
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_invalid_chat_template_kwargs_are_refused_by_name(http):
    """The parameter is named for reserved variables and for invalid values."""
    for variables in ({"messages": "x"}, {"enable_thinking": []}):
        error = http.post(CHAT, json={**BODY, "chat_template_kwargs": variables}).json()["error"]
        assert error["param"] == "chat_template_kwargs", error
    assert http.post(CHAT, json={**BODY, "chat_template_kwargs": {"enable_thinking": False}}).status_code == 200


def test_a_list_of_one_prompt_is_that_prompt(http):
    """This holds for text and token ids; an empty prompt is refused."""

    def ask(prompt) -> dict:
        return http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1, "seed": 1}).json()

    assert ask([[5, 6]])["choices"] == ask([5, 6])["choices"]
    assert ask(["a"])["choices"] == ask("a")["choices"]
    for empty in ([[]], [""], []):
        assert ask(empty)["error"]["param"] == "prompt"


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/responses"])
def test_a_post_to_a_wrong_address_lists_the_right_ones(http, path: str):
    """The /v1 is often missing in the base URL of a client."""
    error = http.post(path, json=BODY).json()["error"]
    assert error["code"] == "not_found"
    generating = [route.path for route in http.app.routes if getattr(route, "endpoint", None) in GENERATING]
    assert len(generating) == len(GENERATING)
    assert set(generating) == set(re.findall(r"/v1/[a-z/]+", error["message"].partition(";")[2]))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, BODY),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/responses/input_tokens", {"input": "a"}),
        ("/v1/messages", BODY),
        ("/v1/messages/count_tokens", {}),
        ("/tokenize", {}),
        ("/detokenize", {}),
    ],
)
def test_an_unknown_model_is_reported_before_an_unknown_parameter(http, path: str, body: dict):
    """A client with the wrong server learns that first, whatever the length of its body."""
    for more in ({"bananas": 3}, {"bananas": "x" * 40_000}):
        answer = http.post(path, json={**body, **more, "model": "gpt-nine"})
        assert (answer.status_code, "gpt-nine" in answer.text) == (404, True), answer.text


def test_a_text_completion_that_should_be_stored_states_that_it_is_not(http):
    """Whole answers and all chunks have the field; others do not."""
    path, body = "/v1/completions", {"prompt": "a", "max_tokens": 1}
    assert http.post(path, json={**body, "store": True}).json()["store"] is False
    for fields in ({}, {"store": False}):
        assert "store" not in http.post(path, json=body | fields).json()
    stream = http.post(path, json={**body, "store": True, "stream": True}).text
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    assert chunks and all(chunk["store"] is False for chunk in chunks)


@pytest.mark.parametrize(
    ("empty", "unsupported"),
    [
        ({"functions": []}, {"functions": [{"name": "f"}]}),
        ({"stream_options": {"include_obfuscation": False}}, {"stream_options": {"include_obfuscation": True}}),
        ({"modalities": ["text"]}, {"modalities": ["text", "audio"]}),
        ({"guided_json": None}, {"guided_json": {}}),
        (
            {"messages": [ASSISTANT_MESSAGE | {"annotations": []}]},
            {"messages": [ASSISTANT_MESSAGE | {"function_call": {"name": "f", "arguments": ""}}]},
        ),
    ],
)
def test_empty_values_of_unsupported_parameters_are_accepted(http, empty: dict, unsupported: dict):
    """A non-empty value is unsupported, and the error names the parameter."""
    body = BODY | {"stream": True, "max_tokens": 1}
    assert http.post(CHAT, json=body | empty).status_code == 200
    error = http.post(CHAT, json=body | unsupported).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", next(iter(unsupported)))


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
def test_an_error_names_no_limit_that_was_not_sent(http, path: str):
    """The lower limit may exceed the room of the context instead of an upper one."""
    prompt = {"/v1/responses": {"input": "a"}, "/v1/completions": {"prompt": "a"}}.get(path, {"messages": user("a")})
    error = http.post(path, json={**prompt, "min_tokens": 10**6}).json()["error"]
    assert error["param"] == "min_tokens" and "greatest length of the answer" in error["message"]
    assert not re.search("max_[a-z_]*tokens", error["message"])
    limit = {"/v1/responses": "max_output_tokens"}.get(path, "max_tokens")
    error = http.post(path, json={**prompt, "min_tokens": 10**6, limit: 3}).json()["error"]
    assert error["param"] == "min_tokens" and f"{limit} (3)" in error["message"]


@pytest.mark.parametrize("headers", [{"Idempotency-Key": "k"}, {"X-Carousel-Resume": "5"}])
def test_several_prompts_with_a_header_that_resumes_are_refused_by_that_header(http, headers: dict[str, str]):
    """The error does not mention the other one."""
    error = http.post("/v1/completions", json={"prompt": ["a", "b"]}, headers=headers).json()["error"]
    [name] = headers
    assert error["param"] == name and error["message"].startswith(f"{name} needs a single prompt")
    assert not ({"X-Carousel-Resume", "Idempotency-Key"} - {name}) & set(error["message"].split())


def test_a_stream_is_found_by_its_answer_s_id_too(http):
    """Timelines of requests can be found by it too."""
    answer = http.post(CHAT, json=BODY, headers={"X-Carousel-Resume": "30"}).json()
    assert http.get(f"/v1/streams/{answer['id']}").status_code == 200


@pytest.mark.parametrize("path", ["/", "/engine"])
def test_pages_are_served_under_a_strict_policy(http, path: str):
    """There is no inline script, no foreign source and no frame, and the page needs none."""
    answer = http.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<script>" not in answer.text
    assert "style=" not in answer.text
    assert "//cdn" not in answer.text


def test_the_frame_of_diagrams_runs_only_its_own_scripts(http):
    """A nonce, which is another one each time, allows them; there is no network, no origin and no image."""
    first, second = http.get("/preview/mermaid"), http.get("/preview/mermaid")
    policy = first.headers["content-security-policy"]
    (nonce,) = re.findall(r"script-src 'nonce-([\w-]{22})';", policy)
    assert policy.startswith("sandbox allow-scripts; default-src 'none'; ")
    assert not re.search("connect-src|img-src|'self';|allow-same-origin", policy)
    assert re.findall("<script([^>]*)>", first.text) == [
        f' nonce="{nonce}" src="/static/{version()}/vendor/mermaid/mermaid.tiny.js"',
        f' nonce="{nonce}"',
    ]
    assert nonce not in second.text
    assert http.get(f"/static/{version()}/vendor/mermaid/mermaid.tiny.js").status_code == 200


def test_favicon_ico_is_the_icon_of_the_pages(http):
    """Some browsers request /favicon.ico regardless of links in the page, and all do so when they show JSON."""
    answer = http.get("/favicon.ico")
    assert answer.headers["content-type"] == "image/svg+xml"
    linked = re.search(r'rel="icon".* href="([^"]*)"', http.get("/").text)
    assert linked is not None
    assert answer.content == http.get(linked.group(1)).content


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CHAT),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/fake"),
        ("GET", "/v1/streams/x"),
        ("DELETE", "/v1/streams/x"),
        ("GET", "/v1/engine/events"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
    ],
)
@pytest.mark.parametrize(
    "key",
    [None, "", "alic", "alicee", "Alice", "alice,bob", "ключ"],
    ids=lambda key: repr(key).encode("ascii", "replace"),
)
def test_without_a_valid_key_every_route_responds_401(http_with_keys, method: str, path: str, key: str | None):
    """Keys are missing, empty, incomplete, or in another alphabet."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}".encode()}
    answer = http_with_keys.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_stream_belongs_to_the_key_that_started_it(http_with_keys):
    """For another tenant the response equals that for an unknown stream."""
    alice, bob = ({"Authorization": f"Bearer {name}"} for name in ("alice", "bob"))
    answer = http_with_keys.post(CHAT, json=BODY, headers=alice)
    assert answer.status_code == 200
    stream = answer.headers["x-request-id"]
    assert http_with_keys.get(f"/v1/streams/{stream}", headers=alice).status_code == 200
    foreign = http_with_keys.get(f"/v1/streams/{stream}", headers=bob)
    unknown = http_with_keys.get("/v1/streams/" + "0" * 24, headers=bob)
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.text.replace(stream, "") == unknown.text.replace("0" * 24, "")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"store": 0}, "store"),
        ("/v1/completions", {"echo": 0.0}, "echo"),
        ("/v1/completions", {"repetition_penalty": 1e-7}, "repetition_penalty"),
        ("/v1/completions", {"top_n_sigma": -0.5}, "top_n_sigma"),
    ],
)
def test_a_non_boolean_or_a_value_out_of_range_is_refused(http, path, fields, param):
    """0 equals False in Python but not in JSON, and the error has the real range."""
    body = BODY if path == CHAT else {"prompt": "hi"}
    error = http.post(path, json={**body, **fields}).json()["error"]
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert "1e-06, 1e+06" not in error["message"]


def test_a_completion_without_a_limit_has_sixteen_tokens(http):
    """The parameter is missing, or null as some clients write it."""
    for fields in ({}, {"max_tokens": None}):
        answer = http.post("/v1/completions", json={"prompt": "hi", "ignore_eos": True, **fields}).json()
        assert answer["usage"]["completion_tokens"] == 16


def test_a_completion_without_a_limit_has_as_many_tokens_as_fit(http):
    """The default is lower near the end of the context and higher if `min_tokens` requires it."""
    context = http.get("/v1/models").json()["data"][0]["max_model_len"]
    for prompt, fields, count in ((context - 3, {}, 3), (context - 1, {}, 1), (4, {"min_tokens": 20}, 20)):
        body = {"prompt": [1] * prompt, "ignore_eos": True, **fields}
        assert http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == count
    error = http.post("/v1/completions", json={"prompt": [1] * context}).json()["error"]
    assert error["param"] == "prompt" and "max_tokens" not in error["message"]


def test_tokenize_and_detokenize_are_inverse(http):
    """/tokenize and /detokenize are inverse to each other."""
    ids = http.post("/tokenize", json={"prompt": "hello wörld 🎠"}).json()
    assert ids["count"] == len(ids["tokens"])
    assert http.post("/detokenize", json={"tokens": ids["tokens"]}).json() == {"prompt": "hello wörld 🎠"}
    assert http.post("/detokenize", json={"tokens": [10**9]}).status_code == 400
    assert http.post("/tokenize", json={}).status_code == 400


def test_a_deadline_that_cannot_be_met_is_504(http):
    """The error comes at once and has the protocol's shape."""
    messages = [{"role": "user", "content": "words that no cache has seen"}]
    answer = http.post(CHAT, json={**BODY, "messages": messages, "deadline_ms": 1})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (504, "deadline_exceeded", "deadline_error")
    assert answer.headers["x-should-retry"] == "false"  # otherwise OpenAI's clients would retry twice
    assert http.get(f"/v1/requests/{answer.headers['x-request-id']}").json()["state"] == "ended"
    assert error["param"] == "deadline_ms"


def test_a_deadline_counts_from_the_arrival(http, monkeypatch):
    """It includes the time of tokenization."""
    encode = TextModel.encode

    def slow_encode(text: TextModel, *given, **more):
        time.sleep(0.3)
        return encode(text, *given, **more)

    monkeypatch.setattr(TextModel, "encode", slow_encode)
    assert http.post(CHAT, json={**BODY, "deadline_ms": 200}).status_code == 504
    assert http.post(CHAT, json={**BODY, "deadline_ms": 60_000}).status_code == 200


def test_a_text_that_can_never_fit_is_refused_untokenized(monkeypatch):
    """The error has the client's parameter name, while /tokenize still counts such texts."""
    far_too_long = "ab" * 50_000
    with make() as client:
        ready(client)
        assert client.post("/tokenize", json={"prompt": far_too_long}).json()["count"] == 100_000
        tokenized = []
        monkeypatch.setattr(TextModel, "encode", lambda *_, **__: tokenized.append(1) or [1])
        for path, name, content in (
            (CHAT, "messages", user(far_too_long)),
            ("/v1/completions", "prompt", far_too_long),
        ):
            answer = client.post(path, json={name: content})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", name)
        assert not tokenized


@pytest.mark.parametrize("value", [0, -1, 2**31, "soon", 1.5])
def test_an_invalid_deadline_is_refused_by_name(http, value):
    """A deadline is a whole number of milliseconds from the arrival on."""
    answer = http.post(CHAT, json={**BODY, "deadline_ms": value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "deadline_ms")


def test_a_key_may_use_its_tiers_only():
    """The default is the highest tier of the key, and other tiers are refused by name."""
    night = Tenant(name="night", digest=key_digest("n"), tiers=("flex",))
    with make(tenants=(night,)) as client:
        headers = {"Authorization": "Bearer n"}
        model_card = ready(client).get("/v1/models", headers=headers).json()["data"][0]
        refused = ready(client).post(CHAT, json={**BODY, "service_tier": "priority"}, headers=headers)
        served = client.post(CHAT, json=BODY, headers=headers)
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "service_tier")
    assert (served.status_code, served.json()["service_tier"]) == (200, "flex")
    assert model_card["service_tiers"] == ["flex"]


def test_a_burst_that_fits_the_slots_is_admitted():
    """The queue is shorter than the burst, slots are not assigned yet, and ended requests hold none."""
    anna = Tenant(name="anna", digest=key_digest("a"), max_queue=1)
    with make(tenants=(anna,), max_queue=1) as client, ThreadPoolExecutor(CONFIG.max_num_seqs) as pool:
        ready(client)
        for _ in range(3):
            responses = [
                pool.submit(client.post, CHAT, json=BODY, headers={"Authorization": "Bearer a"})
                for _ in range(CONFIG.max_num_seqs)
            ]
            assert [one.result().status_code for one in responses] == CONFIG.max_num_seqs * [200]
        assert client.app.state.service.counts.running == 0


def test_a_full_server_responds_with_retry_after():
    """The response is a 503 with Retry-After, and admitted requests are not affected."""
    with make(max_queue=1) as client:
        fill_queue(ready(client))
        answer = client.post(CHAT, json=BODY)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "server_full"


def test_a_keyless_client_that_fills_its_share_does_not_block_other_addresses():
    """Its further requests are 429 with Retry-After; clients at other addresses are served, under the same label."""
    with make(max_queue=40) as client:
        admission = ready(client).app.state.service.admission
        for _ in range(20 + CONFIG.max_num_seqs):
            admission.add_waiting(anonymous("192.0.2.1").id, ServiceClass.INTERACTIVE, 1)
        refused = from_address(client, "192.0.2.1").post(CHAT, json={**BODY, "service_tier": "priority"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_share_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        answer = from_address(client, "192.0.2.2").post(CHAT, json={**BODY, "service_tier": "priority"})
        assert answer.status_code == 200
        stream = answer.headers["x-carousel-stream"]
        # A stream's ID is the permission to read it.
        assert from_address(client, "192.0.2.1").get(f"/v1/streams/{stream}").status_code == 200
        tenants = set(re.findall(r'tenant="([^"]*)"', client.get("/metrics").text))
        assert tenants == {"anybody"}


def test_a_limit_of_a_key_is_429_and_other_keys_are_not_affected():
    """The refusal names the limit and is counted by its code."""
    anna = Tenant(name="anna", digest=key_digest("a"), tokens_per_minute=10)
    bert = Tenant(name="bert", digest=key_digest("b"))
    with make(tenants=(anna, bert), requests_per_minute=100, max_concurrency=16, public_metrics=True) as client:
        headers = {"Authorization": "Bearer a"}
        assert ready(client).post(CHAT, json=BODY, headers=headers).status_code == 200
        refused = client.post(CHAT, json=BODY, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "tokens_per_minute_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        assert client.post(CHAT, json={**BODY, "n": 4}, headers={"Authorization": "Bearer b"}).status_code == 200
        assert client.app.state.service.limits._usages[bert.id].running == 0
        assert 'code="tokens_per_minute_exceeded"' in client.get("/metrics").text


@pytest.mark.parametrize(
    ("options", "accepted", "refused"),
    [
        ({}, (None, "anything"), ()),
        ({"tenants": (tenant_of_key("alice"),)}, (), ((None, 403), ("alice", 403))),
        ({"keys_file": "keys.toml"}, (), ((None, 403), ("alice", 403))),
        ({"tenants": (tenant_of_key("alice"),), "public_metrics": True}, (None, "alice"), ()),
        (
            {"tenants": (tenant_of_key("alice"),), "operator_key": "op"},
            ("op",),
            ((None, 401), ("alice", 401), ("", 401)),
        ),
        (
            {"tenants": (tenant_of_key("alice"),), "operator_key": "op", "metrics_key": "m"},
            ("op", "m"),
            ((None, 401), ("alice", 401), ("o", 401)),
        ),
        ({"metrics_key": "m"}, ("m",), ((None, 401), ("op", 401))),
        ({"operator_key": "op"}, (None,), ()),
    ],
)
def test_metrics_need_an_operator_key_if_there_are_api_keys(options, accepted, refused):
    """An API key does not show the names and volumes of other tenants; without API keys /metrics is open."""
    with make(**options) as client:
        for key, status in (*((key, 200) for key in accepted), *refused):
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            answer = client.get("/metrics", headers=headers)
            assert answer.status_code == status
            if status == 403:
                assert "--metrics-key" in answer.json()["error"]["message"]


def test_engine_events_name_no_tenant():
    """Any API key may follow them, so they have classes and shortened request IDs only."""
    assert not {"tenant", "owner", "weight"} & set(SlotView.__struct_fields__ + WaitView.__struct_fields__)


def test_wrong_keys_are_counted_and_their_answers_delayed(monkeypatch):
    """A missing key is neither, and a correct key is never delayed."""
    delays: list[float] = []

    async def record(seconds: float) -> None:
        delays.append(seconds)

    with make(tenants=(tenant_of_key("alice"),), operator_key="op") as client:
        ready(client)
        monkeypatch.setattr("app.server.asyncio", SimpleNamespace(sleep=record, to_thread=asyncio.to_thread))
        monkeypatch.setattr(refused_keys, "FREE_ATTEMPTS", 1)
        from_address(client, "192.0.2.1")
        for path in ("/v1/models", "/metrics", "/v1/models"):
            client.get(path, headers={"Authorization": "Bearer wrong"})
        client.post("/drain", headers={"Authorization": "Bearer wrong"})
        with (
            pytest.raises(WebSocketDenialResponse),
            client.websocket_connect("/v1/realtime", headers={"Host": "localhost", "Authorization": "Bearer wrong"}),
        ):
            raise AssertionError("a wrong key opened a WebSocket")
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "Bearer alice"}).status_code == 200
        assert delays == [0.0, 0.1, 0.2, 0.4, 0.8]
        text = client.get("/metrics", headers={"Authorization": "Bearer op"}).text
        assert 'carousel:keys_refused_total{model_name="fake"} 5.0' in text


def test_a_websocket_that_is_idle_is_closed_with_a_reason():
    """The close code is 1000, and the reason has the allowed time."""
    with make(websocket_idle_timeout=0.05) as client:
        ready(client)
        with client.websocket_connect("/v1/realtime", headers={"Host": "localhost"}) as session:
            assert session.receive_json()["type"] == "session.created"
            closed = session.receive()
    assert (closed["type"], closed["code"]) == ("websocket.close", 1000)
    assert "idle for 0.05 s" in closed["reason"]


async def test_a_session_with_a_running_response_is_not_idle():
    """A frame and the end of a response restart the idle time."""
    sent: list[bytes] = []

    async def send(message: bytes) -> None:
        sent.append(message)

    class Pacer:
        async def wait_turn(self) -> None:
            pass

    service = SimpleNamespace(pacer=Pacer(), check_model=lambda _: None)
    session = Session(service, tenant_of_key("alice"), send, lambda _: False)
    session._pace.active_at -= 100
    assert session.idle_seconds >= 100
    session._responses["resp_1"] = SimpleNamespace()
    assert session.idle_seconds == 0.0
    session._responses.clear()
    await session.handle_frame("not JSON")
    assert session.idle_seconds < 100 and b"error" in sent[0]


def test_draining_needs_an_operator_key(http, http_with_keys):
    """It is 403 and names the option if there is none, and 401 for another key, including a tenant's."""
    answer = http.post("/drain")
    assert answer.status_code == 403 and "--operator-key" in answer.json()["error"]["message"]
    with make(tenants=(tenant_of_key("alice"),), operator_key="op") as client:
        ready(client)
        assert client.post("/drain").status_code == 401
        assert client.post("/drain", headers={"Authorization": "Bearer alice"}).status_code == 401
        assert client.post("/drain", headers={"Authorization": "Bearer op"}).status_code == 202
        refused = client.post(CHAT, json=BODY, headers={"Authorization": "Bearer alice"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_shutdown")
        assert refused.headers["retry-after"]
        assert client.get("/readyz").status_code == 503 and client.get("/livez").status_code == 200


@pytest.mark.parametrize("host", ["10.1.2.3:8000", "elsewhere.example"])
def test_probes_need_no_key_and_accept_any_host(http_with_keys, host: str):
    """Kubernetes probes a pod by its address."""
    for path in ("/livez", "/readyz"):
        assert http_with_keys.get(path, headers={"Host": host}).status_code == 200
    assert http_with_keys.get("/v1/models", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("path", ["/health", "/readyz"])
def test_a_server_whose_engine_makes_no_progress_is_not_ready(http, monkeypatch, path: str):
    """It responds 503 with Retry-After and a reason, while /livez succeeds."""
    monkeypatch.setattr(EngineMember, "is_stalled", True)
    answer = http.get(path)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "no progress" in answer.json()["error"]["message"]
    assert 'carousel:engine_up{engine="0"} 0.0' in http.get("/metrics").text
    assert http.get("/livez").status_code == 200
