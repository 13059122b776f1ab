"""Logging through a queue: blocked descriptors, dropped lines, formats, redaction."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from engine.log_queue import MAX_INFO_LOGGERS, LogHandler, LogWriter, start_logging

WAIT = 20.0  # seconds


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Yield a pipe: (descriptor to read, descriptor to write)."""
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        os.close(descriptor)


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    built = logging.LogRecord("carousel.test", logging.WARNING, __file__, 1, message, arguments, None)
    built.__dict__.update(extra)
    return built


def read_until(descriptor: int, expected: str) -> str:
    """Read until the text contains `expected`; otherwise the timeout of the test run ends it."""
    text = ""
    while expected not in text:
        text += os.read(descriptor, 1 << 16).decode()
    return text


def test_a_blocked_descriptor_blocks_no_caller_and_the_dropped_lines_are_counted(pipe: tuple[int, int]):
    """Lines beyond the limit are dropped; when the pipe drains, a line and the counter report how many."""
    reading, writing = pipe
    writer = LogWriter(writing, max_bytes=1 << 18)
    handler = LogHandler(writer, "text")
    flood = threading.Thread(target=lambda: [handler.emit(record("x" * 1000)) for _ in range(1000)], daemon=True)
    flood.start()
    flood.join(WAIT)
    assert not flood.is_alive()
    dropped = writer.dropped
    assert 0 < dropped < 1000
    text = read_until(reading, "were dropped")
    assert f"WARNING carousel.log: {dropped} log lines were dropped" in text
    assert text.count("x" * 1000) == 1000 - dropped
    handler.emit(record("after"))
    assert "after" in read_until(reading, "after")
    writer.close(WAIT)


def test_a_flush_waits_until_lines_are_written_and_no_longer_than_given(pipe: tuple[int, int]):
    """The engine's lines are in the log before the other process says why it has ended."""
    reading, writing = pipe
    writer = LogWriter(writing, max_bytes=1 << 20)
    writer.write("first")
    writer.flush(WAIT)
    assert os.read(reading, 100) == b"first\n"
    writer.write("x" * (1 << 19))  # more than the pipe holds
    writer.flush(0.01)
    read_until(reading, "x\n")
    writer.flush(WAIT)
    writer.close(WAIT)


class Disk:
    """A file of limited size, in place of `os.write`."""

    def __init__(self, size: int) -> None:
        self.content, self.size = b"", size
        self.is_full = threading.Event()

    def write(self, descriptor: int, data: bytes) -> int:
        """Write as much as there is space for, at least a byte. Raises `OSError` without space."""
        room = self.size - len(self.content)
        if room <= 0:
            self.is_full.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.content += data[:room]
        return min(room, len(data))


def test_a_full_disk_tears_no_line_and_is_the_reported_reason(monkeypatch: pytest.MonkeyPatch):
    """A line that was written in part is completed when there is space; the lines after it are counted."""
    disk = Disk(25)
    monkeypatch.setattr("engine.log_queue.os.write", disk.write)
    writer = LogWriter()
    handler = LogHandler(writer, "text")
    for number in range(5):
        writer.write(f"line {number:04}")  # 10 bytes each, with its end
    assert disk.is_full.wait(WAIT)
    while writer.dropped < 2:
        writer._thread.join(0.01)
    disk.size = 10_000
    handler.emit(record("after"))
    writer.close(WAIT)
    lines = disk.content.decode().splitlines()
    assert lines[:3] == ["line 0000", "line 0001", "line 0002"]
    assert lines[-2] == "WARNING carousel.test: after"
    assert lines[-1] == (
        f"WARNING carousel.log: {writer.dropped} log lines were dropped because standard error cannot be written: "
        "No space left on device"
    )
    assert len(lines) == 5 - writer.dropped + 2


def test_closing_writes_queued_lines_and_does_not_wait_for_a_blocked_descriptor(pipe: tuple[int, int]):
    """The timeout bounds the wait."""
    reading, writing = pipe
    writer = LogWriter(writing)
    writer.write("last")
    writer.close(WAIT)
    assert os.read(reading, 100) == b"last\n"
    blocked = LogWriter(writing, max_bytes=1 << 20)
    blocked.write("y" * (1 << 19))
    closing = threading.Thread(target=blocked.close, args=(0.05,))
    closing.start()
    closing.join(WAIT)
    assert not closing.is_alive()
    os.read(reading, 1 << 20)  # the thread ends with the pipe
    os.set_blocking(reading, False)


def test_a_closed_descriptor_counts_as_dropped_lines():
    """A broken pipe does not end the server."""
    reading, writing = os.pipe()
    os.close(reading)
    writer = LogWriter(writing)
    writer.write("lost")
    writer.close(WAIT)
    assert writer.dropped == 1
    os.close(writing)


def test_json_format_writes_one_object_a_line_with_the_record_s_fields(pipe: tuple[int, int]):
    """Also for lines to the operator, and with the traceback of an exception."""
    reading, writing = pipe
    handler = LogHandler(LogWriter(writing), "json")
    handler.emit(record("two\nlines of %s", "text", fields={"request_id": "abc", "status": 200}))
    handler.write_plain("Ready")
    try:
        raise ValueError("broken")
    except ValueError as error:
        handler.emit(record("failed", exc_info=(ValueError, error, error.__traceback__)))
    handler.writer.close(WAIT)
    first, second, third = (json.loads(line) for line in os.read(reading, 1 << 16).decode().splitlines())
    assert first["message"] == "two\nlines of text" and first["level"] == "warning"
    assert (first["request_id"], first["status"], first["logger"]) == ("abc", 200, "carousel.test")
    assert second["message"] == "Ready"
    assert "ValueError: broken" in third["exception"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_credentials_are_redacted(pipe: tuple[int, int], log_format: str):
    """Bearer keys and keys in WebSocket subprotocols are redacted in messages and arguments."""
    reading, writing = pipe
    handler = LogHandler(LogWriter(writing), log_format)
    handler.emit(record("> Authorization: Bearer sk-secret1"))
    handler.emit(record("%r", {"authorization": "bearer sk-secret2", "x": "openai-insecure-api-key.sk-secret3, y"}))
    handler.writer.close(WAIT)
    text = os.read(reading, 1 << 16).decode()
    assert "sk-secret" not in text and text.count("[redacted]") == 3


def test_a_record_that_cannot_be_formatted_is_one_line(pipe: tuple[int, int]):
    """The error is logged without a traceback on standard error."""
    reading, writing = pipe
    handler = LogHandler(LogWriter(writing), "text")
    handler.emit(record("%d", "no number"))
    handler.writer.close(WAIT)
    assert os.read(reading, 1 << 16).decode().startswith("ERROR carousel.log: a record of ")


def test_libraries_that_log_the_content_of_messages_stay_at_info():
    """They stay at INFO at every configured level."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in MAX_INFO_LOGGERS}
    try:
        handler = start_logging("debug", "text")
        assert root.level == logging.DEBUG
        assert all(not logging.getLogger(name).isEnabledFor(logging.DEBUG) for name in MAX_INFO_LOGGERS)
        handler.writer.close(WAIT)
    finally:
        root.handlers[:], root.level = before
        logging.captureWarnings(False)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
