"""Server-sent events: format of events.

The format works with every client that was tried: no event without `data:`, status and keep-alive as comments, `id:`
only together with `data:`, an error frame before an early end, and no `[DONE]` after a failure. Ids and status are only
sent to readers that announced that they may resume: other clients take any line without `data:` for the end of an
answer (litellm), or for JSON (vLLM's benchmark).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from app.errors import ApiError
from app.streams.status import status_view
from engine.types import StatusEvent

PING = b": ping\n\n"

# UTF-8 of U+0085, U+2028 and U+2029. They may occur unescaped in a JSON string, but clients that split the stream with
# str.splitlines() (such as openai-python) treat them as ends of lines.
_LINE_BREAKS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def openai_error(error: ApiError) -> dict[str, Any]:
    """Return `{"error": {...}}`, as OpenAI's clients read it."""
    return error.body


def event(data: bytes, kind: bytes = b"", cursor: bytes = b"") -> bytes:
    """Return one event: `data:` is one line of JSON, `event:` its type for protocols that name it, and `id:` the
    position to resume from, for readers that may resume.
    """
    if not data.isascii():
        for raw, escaped in _LINE_BREAKS:
            data = data.replace(raw, escaped)
    if kind:
        data = b"event: %s\ndata: %s\n\n" % (kind, data)
    else:
        data = b"data: %s\n\n" % data
    return b"id: %s\n%s" % (cursor, data) if cursor else data


@dataclass(frozen=True, slots=True)
class EventFormat:
    """`WireFormat` of a protocol with server-sent events."""

    prefix: str
    keep_alive: bytes = PING
    end_mark: bytes = b""
    error_body: Callable[[ApiError], dict[str, Any]] = openai_error
    media_type: str = "text/event-stream"

    frame = staticmethod(event)

    def status(self, status: StatusEvent) -> bytes:
        """Return the status of a request as a comment, which clients may ignore."""
        return b": carousel %s\n\n" % msgspec.json.encode(status_view(status))
