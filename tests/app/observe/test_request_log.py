"""Request IDs and access lines, on the real application with a fake engine."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse

from app.admission.tenants import tenant_of_key
from app.engine_client.client import EngineClient
from engine.types import EndEvent, FinishReason
from tests.app.routes.test_http import BODY, CHAT, make, ready


@pytest.fixture(scope="module")
def http():
    with make() as client:
        yield ready(client)


def access(caplog: pytest.LogCaptureFixture) -> dict:
    """Return the fields of the last access line."""
    return [r for r in caplog.records if r.name == "carousel.access"][-1].fields


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", CHAT, BODY, 200),
        ("POST", CHAT, {**BODY, "stream": True}, 200),
        ("POST", CHAT, {}, 400),
        ("GET", "/nowhere", None, 404),
        ("PUT", CHAT, None, 405),
        ("GET", "/health", None, 200),
        ("POST", "/tokenize", {"prompt": "a"}, 200),
    ],
)
def test_every_response_has_a_request_id_and_a_client_s_own_is_kept(http: TestClient, method, path, body, status):
    """Any response has exactly one such header."""
    generated = http.request(method, path, json=body)
    own = http.request(method, path, json=body, headers={"X-Request-Id": "my id/7"})
    assert generated.status_code == own.status_code == status
    assert len(generated.headers.get_list("x-request-id")) == 1 and len(generated.headers["x-request-id"]) >= 16
    assert own.headers.get_list("x-request-id") == ["my id/7"]


@pytest.mark.parametrize("given", [b"", b"x" * 129, b"a\tb", "é".encode()])
def test_an_id_that_is_not_well_formed_is_replaced(http: TestClient, given: bytes):
    """Valid IDs are printable ASCII of at most 128 characters."""
    answer = http.get("/health", headers={b"X-Request-Id": given})
    assert answer.headers["x-request-id"].encode() != given and len(answer.headers["x-request-id"]) == 24


def test_an_internal_error_names_its_request_in_answer_and_log(monkeypatch, caplog: pytest.LogCaptureFixture):
    """Header, message, log and access line have the same ID."""
    with make() as client:
        ready(client)
        monkeypatch.setattr(EngineClient, "check", lambda *_: 1 / 0)
        with caplog.at_level(logging.INFO):
            answer = client.post(CHAT, json=BODY, headers={"X-Request-Id": "mine"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine")
    assert "request ID mine" in answer.json()["error"]["message"]
    assert "request mine failed" in caplog.text
    assert access(caplog)["status"] == 500


def test_a_refused_handshake_is_answered_in_the_protocol_s_shape_with_an_id(http: TestClient):
    """The status is 403, with a body."""
    headers = {"Host": "localhost", "Origin": "https://evil.example", "X-Request-Id": "mine"}
    with pytest.raises(WebSocketDenialResponse) as refused, http.websocket_connect("/v1/realtime", headers=headers):
        pass
    assert (refused.value.status_code, refused.value.headers["x-request-id"]) == (403, "mine")
    assert "evil.example" in refused.value.json()["error"]["message"]


def test_an_accepted_handshake_has_an_id_and_an_access_line(http: TestClient, caplog: pytest.LogCaptureFixture):
    """The line is written when the session ends."""
    with (
        caplog.at_level(logging.INFO),
        http.websocket_connect("/v1/realtime", headers={"Host": "localhost"}) as session,
    ):
        assert (b"x-request-id") in dict(session.extra_headers)
        session.close()
        while not any(record.name == "carousel.access" for record in caplog.records):
            time.sleep(0.001)  # wait for the end of the session: leaving the block would cancel it
    assert (access(caplog)["method"], access(caplog)["status"]) == ("WEBSOCKET", 101)


def test_an_access_line_describes_the_request(caplog: pytest.LogCaptureFixture):
    """The line has method, path, status, bytes, seconds, tenant, IDs and tokens."""
    with make(tenants=(tenant_of_key("alice"),)) as client, caplog.at_level(logging.INFO):
        ready(client)
        headers = {"Authorization": "Bearer alice", "X-Request-Id": "mine"}
        answer = client.post(f"{CHAT}?secret=1", json=BODY, headers=headers)
        fields = access(caplog)
        usage = answer.json()["usage"]
        assert fields.pop("seconds") >= 0
        assert fields == {
            "method": "POST",
            "path": CHAT,
            "status": 200,
            "bytes": len(answer.content),
            "tenant": tenant_of_key("alice").name,
            "request_id": "mine",
            "stream": answer.headers["x-carousel-stream"],
            "tokens_in": usage["prompt_tokens"],
            "tokens_out": usage["completion_tokens"],
        }
        client.post(CHAT, json=BODY, headers={"Authorization": "Bearer eve"})
        assert (access(caplog)["status"], access(caplog)["tenant"]) == (401, "-")
        client.get("/a%0aINFO forged")
        assert access(caplog)["path"] == "/a\\nINFO forged"


def test_an_error_of_the_engine_is_logged_with_the_client_s_id(monkeypatch, caplog: pytest.LogCaptureFixture):
    """The engine gets the ID too, for its own log lines."""
    sent = []
    submit = EngineClient.submit

    def fail(self, request, sink):
        sent.append(request)
        submit(self, request, sink)
        error = EndEvent(request.id, 0, FinishReason.ERROR, "computed NaN", "not_a_number")
        asyncio.get_running_loop().call_soon(sink, error)

    monkeypatch.setattr(EngineClient, "submit", fail)
    with make() as client, caplog.at_level(logging.INFO):
        ready(client)
        answer = client.post(CHAT, json={**BODY, "stream": True}, headers={"X-Request-Id": "mine"})
    stream = answer.headers["x-carousel-stream"]
    assert [request.client_id for request in sent] == ["mine"]
    [record] = [r for r in caplog.records if r.name == "carousel.generation"]
    assert record.getMessage() == f"request mine (stream {stream}): computed NaN (not_a_number)"
    assert record.fields == {"request_id": "mine", "stream": stream}


def test_the_requests_of_a_session_have_the_id_of_its_handshake(http: TestClient, monkeypatch, caplog):
    """The access line and the client have that ID."""
    sent = []
    submit = EngineClient.submit
    monkeypatch.setattr(EngineClient, "submit", lambda self, *args: (sent.append(args[0]), submit(self, *args)))
    with (
        caplog.at_level(logging.INFO),
        http.websocket_connect("/v1/realtime", headers={"Host": "localhost"}) as session,
    ):
        handshake = dict(session.extra_headers)[b"x-request-id"].decode()
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
        session.send_json({"type": "conversation.item.create", "item": item})
        session.send_json({"type": "response.create", "response": {"max_output_tokens": 4}})
        while session.receive_json()["type"] != "response.done":
            pass
        session.close()
        while not any(record.name == "carousel.access" for record in caplog.records):
            time.sleep(0.001)  # until the session has ended
    assert access(caplog)["request_id"] == handshake
    assert [request.client_id for request in sent] == [handshake]


def test_probes_and_static_files_have_no_line_at_info(http: TestClient, caplog: pytest.LogCaptureFixture):
    """A page loads dozens of files, and probes come every few seconds."""
    with caplog.at_level(logging.INFO):
        for path in ("/static/js/main.js", "/health", "/livez", "/metrics"):
            assert http.get(path, headers={"Host": "localhost"}).status_code == 200
    assert not [record for record in caplog.records if record.name == "carousel.access"]
