"""The server's listening socket, and its configuration of uvicorn."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn
from starlette.applications import Starlette

from app.admission.connection_limits import ConnectionLimits
from app.cli.listener import _bind
from app.cli.serve import _config
from app.settings import Settings
from engine.config import EngineConfig


def test_a_second_server_cannot_bind_the_same_address():
    """The second of two servers that start together fails at once, not only when the first one serves."""
    with _bind("127.0.0.1", 0, reuse_port=False) as first, pytest.raises(OSError, match="cannot listen on"):
        _bind("127.0.0.1", first.getsockname()[1], reuse_port=False)


async def test_an_idle_connection_is_closed_after_the_time_of_its_option():
    """Until then the client can send another request on it."""
    settings = Settings(engine=EngineConfig(model="fake"), model_name="fake", keep_alive=1)
    config = _config(settings, Starlette(), ConnectionLimits())
    assert config.timeout_keep_alive == 1
    listening = _bind("127.0.0.1", 0, reuse_port=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            for _ in range(2):
                writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert b" 404 " in await reader.readuntil(b"\r\n\r\nNot Found")
            assert await reader.read() == b""
            writer.close()
    finally:
        server.should_exit = True
        await serving
