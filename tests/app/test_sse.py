"""How events look on the wire."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import sse
from app.streams import StreamLog


@given(st.text())
def test_an_event_is_one_line_for_every_client(text: str):
    """However a client cuts lines, `data:` is one of them and holds the whole JSON."""
    log = StreamLog("stream", "epoch", "")
    lines = sse.block(log, 1, msgspec.json.encode({"content": text})).decode().splitlines()
    assert lines[0] == "id: stream.epoch.1"
    assert msgspec.json.decode(lines[1].removeprefix("data: ")) == {"content": text}
    assert lines[2:] == [""]


async def test_a_reader_that_stalls_at_the_very_end_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """The socket is full when only the end mark is left: the stream is closed all the same, and says so."""
    monkeypatch.setattr(sse, "SEND_TIMEOUT", 0.05)
    closed = asyncio.Event()

    async def content():
        yield b"data: x\n\n"

    async def send(message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            await asyncio.Event().wait()

    response = sse.EventStream(content(), closed.set)
    async with asyncio.timeout(10):
        await response({"type": "http", "method": "GET"}, asyncio.Event().wait, send)
    assert closed.is_set()
