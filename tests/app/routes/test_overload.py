"""Refusal of requests that would wait for too long."""

from __future__ import annotations

import pytest

from app.admission.start_rate import StartRate
from engine.types import ServiceClass
from tests.app.routes.test_http import BODY, CHAT, make, ready


def test_a_request_that_would_wait_for_too_long_is_refused_with_the_time_to_return(monkeypatch: pytest.MonkeyPatch):
    """The limit is that of its class; the refusal is counted, and an idle server accepts the same request."""
    monkeypatch.setattr(StartRate, "per_second", lambda *_: 1.0)
    with make() as client:
        ready(client)
        interactive = BODY | {"service_tier": "priority"}
        assert client.post(CHAT, json=interactive).status_code == 200
        for _ in range(100):
            client.app.state.service.admission.add_waiting("", ServiceClass.INTERACTIVE, 1)
        refused = client.post(CHAT, json=interactive)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_wait_exceeded")
        assert 60 <= int(refused.headers["Retry-After"]) <= 120
        for tier in ("default", "flex"):
            assert client.post(CHAT, json=BODY | {"service_tier": tier}).status_code == 200
        assert 'code="queue_wait_exceeded"' in client.get("/metrics").text


def test_each_class_has_its_own_limit(monkeypatch: pytest.MonkeyPatch):
    """A limit for batch requests refuses these."""
    monkeypatch.setattr(StartRate, "per_second", lambda *_: 1.0)
    with make(max_queue_wait_batch=10.0) as client:
        ready(client)
        for _ in range(100):
            client.app.state.service.admission.add_waiting("", ServiceClass.BATCH, 1)
        statuses = {
            tier: client.post(CHAT, json=BODY | {"service_tier": tier}).status_code
            for tier in ("priority", "default", "flex")
        }
        assert statuses == {"priority": 200, "default": 200, "flex": 503}
