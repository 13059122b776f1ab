"""Newline-delimited JSON: the wire format of Ollama's protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.errors import ApiError
from engine.types import StatusEvent


@dataclass(frozen=True, slots=True)
class LineFormat:
    """`WireFormat` of a protocol with one JSON value a line. A line has no place for a position or a comment, and
    clients take an empty one for a wrong value.
    """

    prefix: str
    error_body: Callable[[ApiError], dict[str, Any]]
    media_type: str = "application/x-ndjson"
    keep_alive: bytes = b""
    end_mark: bytes = b""

    def frame(self, data: bytes, kind: bytes = b"", cursor: bytes = b"") -> bytes:
        """Return a line."""
        return data + b"\n"

    def status(self, status: StatusEvent) -> bytes:
        """Return nothing."""
        return b""
