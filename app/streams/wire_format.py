"""WireFormat: how a protocol writes streams and errors on a connection. Each protocol owns one."""

from __future__ import annotations

from typing import Any, Protocol

from app.errors import ApiError
from engine.types import StatusEvent


class WireFormat(Protocol):
    """Format of one protocol. Bytes that it cannot express are empty."""

    @property
    def prefix(self) -> str:
        """Return the beginning of the paths whose errors have this format."""
        ...

    @property
    def media_type(self) -> str:
        """Return the media type of a stream."""
        ...

    @property
    def keep_alive(self) -> bytes:
        """Return the bytes that keep a connection without records alive."""
        ...

    @property
    def end_mark(self) -> bytes:
        """Return the data of the frame after the last record."""
        ...

    def frame(self, data: bytes, kind: bytes = b"", cursor: bytes = b"") -> bytes:
        """Return a frame with one JSON value. kind: type of the event. cursor: position after it, to resume from."""
        ...

    def status(self, status: StatusEvent) -> bytes:
        """Return the status of a request, which clients may ignore."""
        ...

    def error_body(self, error: ApiError) -> dict[str, Any]:
        """Return the body of a refusal."""
        ...
