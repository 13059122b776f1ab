"""Parsers of the replies to hostile clients, without the cost of a client library."""

from __future__ import annotations

import re
from typing import Protocol

RECEIVE_BYTES = 1 << 18
CONTINUATION, TEXT, CLOSE, PING, PONG = 0x0, 0x1, 0x8, 0x9, 0xA  # opcodes (RFC 6455, 5.2)


class Reply(Protocol):
    """Parser of the bytes that a server sends."""

    messages: int

    def feed(self, data: bytes) -> str | None:
        """Return the outcome once `data` ends the exchange."""


class HttpReply:
    """Status and error code of an HTTP response that has a length."""

    messages = 0

    def __init__(self) -> None:
        self._data = bytearray()  # beginning of the response
        self._size = 0  # bytes received

    def feed(self, data: bytes) -> str | None:
        self._size += len(data)
        self._data += data[: RECEIVE_BYTES - len(self._data)]
        head, end, _ = self._data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if not end or self._size < len(head) + len(end) + (int(length[1]) if length else 0):
            return None
        code = re.search(rb'"code":\s*"(\w+)"', self._data)
        return self._data[9:12].decode() + (f" {code[1].decode()}" if code else "")


class WebSocketReply:
    """Messages and the close code of a WebSocket, after its handshake."""

    def __init__(self) -> None:
        self.messages = 0
        self._data = bytearray()
        self._skip = 0  # payload bytes to skip
        self._is_open = False

    def feed(self, data: bytes) -> str | None:
        self._data += data
        if not self._is_open:
            head, end, _ = self._data.partition(b"\r\n\r\n")
            if not end:
                return None
            if b" 101 " not in head[:16]:
                return f"HTTP {head[9:12].decode()}"
            self._is_open = True
            del self._data[: len(head) + len(end)]
        return self._read_frames()

    def _read_frames(self) -> str | None:
        data = self._data
        while True:
            skipped = min(self._skip, len(data))
            del data[:skipped]
            self._skip -= skipped
            extended = {126: 2, 127: 8}.get(data[1], 0) if len(data) >= 2 else 0
            if self._skip or len(data) < 2 + extended:
                return None
            size = int.from_bytes(data[2 : 2 + extended], "big") if extended else data[1]
            if data[0] & 0xF == CLOSE:
                if len(data) < 2 + size:
                    return None
                return f"close {int.from_bytes(data[2:4], 'big')} {data[4 : 2 + size].decode()}".rstrip()
            self.messages += data[0] & 0xF == TEXT
            self._skip = 2 + extended + size
