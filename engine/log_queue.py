"""Logging that never waits for standard error: a bounded queue of lines, and a thread that writes them.

An unread pipe, a full disk or a stopped terminal can block a write for ever. In the API process that would stop the
event loop, in the engine process a step. Lines that do not fit into the queue are dropped and counted. Both processes
use this module; it is independent of requests.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import threading
import time
from collections import deque
from typing import Any

MAX_QUEUED_BYTES = 1 << 18
MAX_WRITE_BYTES = 1 << 16
MAX_FLUSH_SECONDS = 1.0
STANDARD_ERROR = 2
TEXT_FORMAT = "%(levelname)s %(name)s: %(message)s"

# Credentials as clients send them. Libraries log headers at level debug.
SECRET = re.compile(r"(bearer\s+|openai-insecure-api-key\.)[^\s,;'\"]+", re.IGNORECASE)
# These libraries log the content of messages at level debug. uvicorn passes its own logger to websockets.
MAX_INFO_LOGGERS = ("websockets", "uvicorn.error")


class LogWriter:
    """Writer of log lines to a file descriptor, which it owns. `write` never blocks."""

    def __init__(self, descriptor: int = STANDARD_ERROR, max_bytes: int = MAX_QUEUED_BYTES) -> None:
        self.dropped = 0  # lines since the start
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self._lines: deque[bytes] = deque()
        self._bytes = 0  # in `_lines` and in the write in progress
        self._unreported = 0  # dropped lines that no written line mentions yet
        self._reason = ""  # for which the last of them were dropped
        self._rest = b""  # of a line that was written in part; it is completed before the next one
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue one line, or drop and count it while the queue is full."""
        self.write_text(f"{line}\n")

    def write_text(self, text: str) -> None:
        """Queue text that need not be a whole line, such as a progress bar."""
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self._bytes + len(data) > self._max_bytes:
                self._count_dropped(1, "standard error was not read")
                return
            self._lines.append(data)
            self._bytes += len(data)
            self._changed.notify_all()

    def take_unreported(self) -> tuple[int, str]:
        """Return the number of lines dropped since the last call, and the reason of the last ones."""
        with self._changed:
            count, self._unreported = self._unreported, 0
            return count, self._reason

    @property
    def has_unreported(self) -> bool:
        """Return whether dropped lines have not been mentioned in the log yet."""
        return self._unreported > 0

    def flush(self, timeout: float) -> None:
        """Wait for at most `timeout` seconds until the queued lines are written; do nothing after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or not self._bytes, timeout)

    def close(self, timeout: float) -> None:
        """Write the queued lines for at most `timeout` seconds. Remaining lines are lost with the process."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout)

    def on_drained(self) -> None:
        """Run on the writing thread when all queued lines are written. A handler replaces it."""

    def _count_dropped(self, count: int, reason: str) -> None:
        self.dropped += count
        self._unreported += count
        self._reason = reason

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._is_closing:
                    self._changed.wait()
                if not self._lines:
                    return
                batch = [self._lines.popleft()]
                size = len(batch[0])
                while self._lines and size + len(self._lines[0]) <= MAX_WRITE_BYTES:
                    batch.append(self._lines.popleft())
                    size += len(batch[-1])
            error = self._write_all(self._rest + b"".join(batch))
            with self._changed:
                self._bytes -= size
                if error is not None:
                    self._count_dropped(self._keep_rest(batch), f"standard error cannot be written: {error.strerror}")
                is_drained = error is None and not self._lines
                self._changed.notify_all()
            if is_drained:
                self.on_drained()

    def _write_all(self, data: bytes) -> OSError | None:
        """Write data and leave the rest in `_rest`. Returns the error if there is one: a closed pipe, a full disk."""
        left = memoryview(data)
        try:
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # a descriptor that another process has set to non-blocking
                    select.select([], [self._descriptor], [])
        except OSError as error:
            return error
        finally:
            self._rest = bytes(left)
        return None

    def _keep_rest(self, batch: list[bytes]) -> int:
        """Reduce `_rest` to that of a line that was begun. Returns the number of lines of `batch` that are dropped."""
        dropped, not_begun = 0, 0
        while dropped < len(batch) and not_begun + len(batch[-1 - dropped]) <= len(self._rest):
            not_begun += len(batch[-1 - dropped])
            dropped += 1
        self._rest = self._rest[: len(self._rest) - not_begun]
        return dropped


class LogHandler(logging.Handler):
    """Handler that formats records on the calling thread and queues the lines. Credentials are redacted."""

    def __init__(self, writer: LogWriter, log_format: str) -> None:
        super().__init__()
        self.writer = writer
        self.is_json = log_format == "json"
        self.setFormatter(JsonFormatter() if self.is_json else logging.Formatter(TEXT_FORMAT))
        writer.on_drained = self._report_dropped  # type: ignore[method-assign]

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.writer.write(SECRET.sub(r"\1[redacted]", self.format(record)))
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait until the queued lines are written, for a moment at most."""
        self.writer.flush(MAX_FLUSH_SECONDS)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, the base class's name
        """Write one line about a record that cannot be formatted. The base class would write to standard error."""
        self.writer.write(f"ERROR carousel.log: a record of {record.pathname}:{record.lineno} cannot be formatted")

    def write_plain(self, line: str) -> None:
        """Write a line for the operator at any log level; in text format without a prefix."""
        if self.is_json:
            line = self.format(logging.LogRecord("carousel", logging.INFO, __file__, 0, line, None, None))
        self.writer.write(line)

    def _report_dropped(self) -> None:
        if not self.writer.has_unreported:
            return
        message = "%d log lines were dropped because %s"
        dropped = self.writer.take_unreported()
        self.emit(logging.LogRecord("carousel.log", logging.WARNING, __file__, 0, message, dropped, None))


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object per line: time, level, logger, message, and the dict `fields` given in `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start_logging(level: str, log_format: str) -> LogHandler:
    """Send all records of this process, and Python's warnings, through one queue to standard error."""
    handler = LogHandler(LogWriter(), log_format)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for name in MAX_INFO_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.INFO, root.level))
    return handler
