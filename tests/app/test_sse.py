"""How events look on the wire."""

from __future__ import annotations

import msgspec
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
