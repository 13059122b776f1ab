"""Server-sent events on the wire."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.generation.request import AnswerHead
from app.http import sse
from app.http.answer_stream import AnswerStream
from app.protocols.answers import UsageReports
from app.protocols.chat import ChatEncoder
from app.routes import responses
from app.streams.stream_log import Delta, StreamLog, Usage
from app.streams.tail import DIRECT_WRITE
from engine.types import Phase, StatusEvent
from tests.app.text.test_text_model import byte_level
from tests.limits import HANG_SECONDS
from tests.profiles import examples


@given(st.text())
def test_an_event_is_one_line_for_every_client(text: str):
    """For any way to split lines, `data:` is one line with the whole JSON."""
    cursor = StreamLog("stream", "epoch", "").cursor_at(1)
    lines = sse.event(msgspec.json.encode({"content": text}), cursor=cursor).decode().splitlines()
    assert lines[0] == "id: stream.epoch.1"
    assert msgspec.json.decode(lines[1].removeprefix("data: ")) == {"content": text}
    assert lines[2:] == [""]


class FakeGeneration:
    """The part of a generation that a stream of its log uses."""

    def __init__(self) -> None:
        self.log = StreamLog("s", "e", "")
        self.encoder = ChatEncoder(AnswerHead("m", "default", byte_level(), 1), UsageReports())
        self.left = 0

    def on_reader_left(self) -> None:
        self.left += 1

    def append_deltas(self, count: int) -> None:
        for _ in range(count):
            self.log.append(Delta(0, f"<{len(self.log.records)}>", 1))
        self.log.notify()

    def end(self) -> None:
        self.log.append(Usage(1, 1, 0))
        self.log.notify()


class Socket:
    """ASGI `send` that waits while it is full, as uvicorn's does before it writes, and the direct write."""

    def __init__(self, extensions: bool = True) -> None:
        self.sent = b""
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.has_left = asyncio.Event()
        self.scope: dict = {"type": "http", "method": "POST"}
        if extensions:
            self.scope["extensions"] = {DIRECT_WRITE: {"write": self.write}}

    async def send(self, message) -> None:
        await asyncio.sleep(0) if message["type"] == "http.response.start" else None
        if not self.has_room.is_set():
            await self.has_room.wait()
        self.sent += message.get("body", b"")

    def write(self, piece: bytes) -> bool:
        if not self.has_room.is_set():
            return False
        self.sent += piece
        return True

    def leave(self) -> None:
        self.has_left.set()

    async def receive(self) -> dict:
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def serve(self, answer: FakeGeneration) -> None:
        response = responses.stream(answer)
        await response(self.scope, self.receive, self.send)

    def seqs(self) -> list[int]:
        ids = [line for line in self.sent.split(b"\n") if line.startswith(b"id: ")]
        return [int(line.rsplit(b".", 1)[1]) for line in ids]


@given(
    st.lists(st.one_of(st.integers(1, 3), st.sampled_from(["full", "room", "turn", "status"])), max_size=30),
    st.booleans(),
    st.sampled_from([0.0005, 15.0]),
)
@settings(max_examples=examples(200))
def test_every_record_is_sent_once_in_order_across_stalls(script, extensions, ping_seconds):
    """This holds with stalls between records and within a write, with pings, and without the direct write."""

    async def run() -> None:
        answer, socket = FakeGeneration(), Socket(extensions)
        serving = asyncio.create_task(socket.serve(answer))
        for action in script:
            match action:
                case "full":
                    socket.has_room.clear()
                case "room":
                    socket.has_room.set()
                case "turn":
                    await asyncio.sleep(0.001)
                case "status":
                    answer.log.status = StatusEvent("s", 0, Phase.DECODE, 0)
                    answer.log.notify()
                case int():
                    answer.append_deltas(action)
        socket.has_room.set()
        answer.end()
        await asyncio.wait_for(serving, HANG_SECONDS)
        assert socket.seqs() == sorted(set(socket.seqs()))
        assert [f"<{i}>" in socket.sent.decode() for i in range(len(answer.log.records) - 1)].count(False) == 0
        assert socket.sent.endswith(b"data: [DONE]\n\n")
        assert (answer.left, answer.log.readers, answer.log.listeners) == (1, 0, ())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(responses, "KEEP_ALIVE_SECONDS", ping_seconds)
        asyncio.run(run())


async def test_a_token_is_sent_before_announce_returns():
    """No task is woken for it, so that it is written before the token of the next stream."""
    answer, socket = FakeGeneration(), Socket()
    serving = asyncio.create_task(socket.serve(answer))
    answer.append_deltas(1)
    await asyncio.sleep(0.05)
    answer.append_deltas(1)
    assert "<1>" in socket.sent.decode()
    answer.end()
    await asyncio.wait_for(serving, HANG_SECONDS)


async def test_a_head_request_is_no_reader():
    """It neither cancels the answer at its end nor keeps an answer without readers running."""
    answer, socket = FakeGeneration(), Socket()
    socket.scope["method"] = "HEAD"
    await asyncio.wait_for(socket.serve(answer), HANG_SECONDS)
    assert (answer.left, socket.sent) == (0, b"")


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_reader_that_leaves_ends_its_stream_at_once(is_full: bool):
    """The stream may be idle or wait for room."""
    answer, socket = FakeGeneration(), Socket()
    serving = asyncio.create_task(socket.serve(answer))
    await asyncio.sleep(0.01)
    if is_full:
        socket.has_room.clear()
        answer.append_deltas(1)
        await asyncio.sleep(0.01)
    socket.leave()
    await asyncio.wait_for(serving, HANG_SECONDS)
    assert (answer.left, answer.log.readers, answer.log.listeners) == (1, 0, ())


async def test_a_silent_stream_is_pinged(monkeypatch: pytest.MonkeyPatch):
    """Proxies close idle connections, and events after a ping are sent as usual."""
    monkeypatch.setattr(responses, "KEEP_ALIVE_SECONDS", 0.02)
    answer, socket = FakeGeneration(), Socket()
    serving = asyncio.create_task(socket.serve(answer))
    async with asyncio.timeout(HANG_SECONDS):
        while socket.sent.count(b": ping\n\n") < 3:
            await asyncio.sleep(0.01)
    answer.append_deltas(1)
    answer.end()
    await asyncio.wait_for(serving, HANG_SECONDS)
    assert "<0>" in socket.sent.decode() and socket.sent.endswith(b"data: [DONE]\n\n")


async def test_a_timeout_inside_a_stream_is_not_taken_for_a_disconnect():
    """It is an internal error and is logged as such."""

    async def content():
        yield b"data: x\n\n"
        raise TimeoutError("inside")

    left = []
    response = AnswerStream(lambda _: content(), lambda: left.append(True), "text/event-stream")
    with pytest.raises(TimeoutError, match="inside"):
        await response({"type": "http", "method": "GET"}, asyncio.Event().wait, Socket().send)
    assert left == [True]


@pytest.mark.parametrize("message", ["http.response.start", "http.response.body"])
async def test_a_task_that_is_cancelled_is_cancelled(message: str):
    """The server may cancel a request's task, which is not a disconnect and must not be swallowed."""
    answer, socket = FakeGeneration(), Socket()
    serving = asyncio.create_task(socket.serve(answer))
    if message == "http.response.start":
        socket.has_room.clear()
    await asyncio.sleep(0.01)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert (answer.left, answer.log.readers, answer.log.listeners) == (1, 0, ())


async def test_a_record_that_cannot_be_encoded_ends_only_its_own_stream(monkeypatch: pytest.MonkeyPatch):
    """The writer of the log is not affected."""

    def fail(*_) -> bytes:
        raise ValueError("no words")

    answer, socket = FakeGeneration(), Socket()
    serving = asyncio.create_task(socket.serve(answer))
    await asyncio.sleep(0.01)
    monkeypatch.setattr(ChatEncoder, "encode", fail)
    answer.append_deltas(1)
    with pytest.raises(ValueError, match="no words"):
        await asyncio.wait_for(serving, HANG_SECONDS)
    assert answer.left == 1


def test_a_protocol_may_name_its_events():
    """The type is in an `event:` line before the data, with and without an id."""
    assert sse.event(b"{}", b"ping") == b"event: ping\ndata: {}\n\n"
    assert sse.event(b"{}", b"ping", b"s.e.3") == b"id: s.e.3\nevent: ping\ndata: {}\n\n"
    assert sse.event(b"{}", cursor=b"s.e.3") == b"id: s.e.3\ndata: {}\n\n"
