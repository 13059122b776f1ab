"""Refused WebSocket handshakes: an HTTP answer, and no more than an access line in the log."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from app.admission.tenants import tenant_of_key
from app.http.websocket import WebSocketProtocol
from tests.app.routes.test_http import make
from tests.app.routes.test_realtime_session import Transport
from tests.limits import HANG_SECONDS


@pytest.mark.parametrize(
    ("path", "origin", "status"),
    [
        ("/v1/realtime", "https://evil.example", 403),
        ("/v1/realtime", None, 401),
        ("/v1/responses", None, 401),
        ("/v1/nothing", None, 404),
        ("/static/js/chat.js", None, 403),
    ],
)
async def test_a_refused_handshake_is_one_line_at_info(
    path: str, origin: str | None, status: int, caplog: pytest.LogCaptureFixture
):
    """Any page can cause refusals, so that they must not look like errors of the server."""
    app = make(tenants=(tenant_of_key("alice"),)).app
    config = Config(app, interface="asgi3", log_config=None, lifespan="off")
    config.load()
    server, transport = WebSocketProtocol(config, ServerState(), {}), Transport()
    server.connection_made(transport)
    client = ClientProtocol(parse_uri(f"ws://127.0.0.1:8000{path}"), origin=origin)
    client.send_request(client.connect())
    handshake = b"".join(client.data_to_send())
    with caplog.at_level(logging.INFO):
        server.data_received(re.sub(rb"(?m)^[A-Za-z-]+(?=:)", lambda name: name[0].lower(), handshake))
        async with asyncio.timeout(HANG_SECONDS):
            while server.tasks:
                await asyncio.sleep(0)
    assert f" {status} ".encode() in transport.sent.partition(b"\r\n")[0]
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []
    lines = [record for record in caplog.records if record.name == "carousel.access"]
    assert [(line.fields["path"], line.fields["status"]) for line in lines] == [(path, status)]
