"""Requests that need no engine wait for the turn of their tenant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from app.admission.request_pace import RequestPace
from app.routes.paced_route import PacedRoute
from tests.app.routes.test_api_docs import PAGES
from tests.app.routes.test_http import make, ready

# paths whose requests have no pace, with the reason
UNPACED = {
    **dict.fromkeys(
        ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/api/chat", "/api/generate"),
        "it generates text, for which there are limits of requests, tokens and waiting",
    ),
    **dict.fromkeys(PAGES, "it is read before a key is known"),
    **dict.fromkeys(("/health", "/readyz", "/livez", "/metrics", "/drain"), "it is for operators"),
    "/v1/streams/{stream_id}": "clients resume all their answers at once after a restart",
    "/v1/realtime": "it is refused: it is for WebSockets",
    "/v1/engine/events": "its connection lasts, and their number is limited",
}


@pytest.fixture(scope="module")
def http() -> Iterator[TestClient]:
    with make() as client:
        yield ready(client)


def test_every_route_of_requests_that_need_no_engine_has_a_pace(http):
    """Others have another limit."""
    unpaced = {each.path for each in http.app.routes if isinstance(each, Route) and not isinstance(each, PacedRoute)}
    assert unpaced <= UNPACED.keys(), unpaced


def test_a_flood_is_refused_in_the_shape_of_the_protocol(http):
    """The refusal says when to come back, and another key is served."""
    service = http.app.state.service
    service.request_pace = RequestPace(lambda: True, share=0.01, max_waiting=0)
    answers = [http.get("/v1/models") for _ in range(50)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == service.request_pace.refused > 0
    assert refused[0].json()["error"]["code"] == "request_rate_exceeded" and refused[0].headers["Retry-After"]
    assert http.get("/health").status_code == 200
