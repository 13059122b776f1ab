"""Owners of realtime sessions, on the real application."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse

from app.admission.tenants import tenant_of_key
from tests.app.routes.test_http import make, ready


@pytest.fixture(scope="module")
def http():
    with make(tenants=(tenant_of_key("alice"), tenant_of_key("bob"))) as client:
        yield ready(client)


def realtime(http: TestClient, key: str, session: str | None = None):
    path = "/v1/realtime" + (f"?session={session}" if session else "")
    return http.websocket_connect(path, headers={"Host": "localhost", "Authorization": f"Bearer {key}"})


def test_a_session_of_another_key_is_refused_like_an_unknown_one(http: TestClient):
    """The refusal replaces the upgrade, and the session goes on."""
    with realtime(http, "alice") as socket:
        session = socket.receive_json()["session"]["id"]
        for key, taken in (("bob", session), ("alice", "sess_unknown")):
            with pytest.raises(WebSocketDenialResponse) as refused, realtime(http, key, taken):
                raise AssertionError("the session was taken up")
            error = refused.value.json()["error"]
            assert (refused.value.status_code, error["code"], error["param"]) == (404, "session_not_found", "session")
        with realtime(http, "alice", session) as again:
            assert again.receive_json()["session"]["id"] == session
            assert socket.receive()["type"] == "websocket.close"
