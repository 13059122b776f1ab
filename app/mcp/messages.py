"""JSON-RPC messages of MCP: decoding of those that a server sends, in bounded memory. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from app.mcp.errors import McpError, RequestRefused

MAX_REASON_CHARACTERS = 1000  # of an error
_LINE_END = re.compile(rb"\r\n|\r|\n")


class RpcError(msgspec.Struct):
    """Error of an answer."""

    message: str = ""


class RpcAnswer(msgspec.Struct):
    """Answer to a request, or another message of the server, which has no id, or a method."""

    id: int | str | None = None
    method: str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: RpcError | None = None


_decoder = msgspec.json.Decoder(RpcAnswer)


def encode(method: str, params: Any = None, request_id: int | None = None) -> bytes:
    """Return a request, or without an id a notification."""
    fields = {"id": request_id, "params": params}
    given = {name: value for name, value in fields.items() if value is not None}
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, **given})


def result_of(text: bytes, request_id: int) -> msgspec.Raw | None:
    """Return the result in a message; None if it does not answer the request. Raises `McpError`, and `RequestRefused`
    for an error.
    """
    try:
        answer = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise McpError("did not send a valid JSON-RPC message") from None
    if answer.method is not None or answer.id != request_id:
        return None
    if answer.error is not None:
        raise RequestRefused(printable(answer.error.message) or "no reason was given")
    if not bytes(answer.result):
        raise McpError("sent an answer with neither a result nor an error")
    return answer.result


def printable(text: str) -> str:
    """Return a text of a server for a line of a message: cut, and without control characters."""
    shown = "".join(each if each.isprintable() else " " for each in text[:MAX_REASON_CHARACTERS])
    return shown.strip()


class EventDecoder:
    """Decoder of server-sent events that keeps only their data. Takes linear time, however the bytes are cut."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # parts of the line that has not ended
        self._data: list[bytes] = []  # lines of the event that has not ended
        self._after_return = False  # whether the last byte was a carriage return, to which a line feed belongs

    def push(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of each event that `chunk` completes."""
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_return = chunk.endswith(b"\r")
        *ended, rest = _LINE_END.split(chunk)
        for line in ended:
            yield from self._end_line(b"".join((*self._line, line)))
            self._line.clear()
        self._line.append(rest)

    def _end_line(self, line: bytes) -> Iterator[bytes]:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            yield data
