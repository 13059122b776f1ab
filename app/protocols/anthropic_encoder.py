"""Encoder of the logs of `/v1/messages`: Anthropic's event stream, and whole messages."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import msgspec
from pydantic_core import from_json

from app.errors import ApiError, failure_status
from app.generation.request import AnswerHead
from app.http.sse import EventFormat, event
from app.protocols.answers import ChoiceText, failure_error
from app.streams.stream_log import (
    ChoiceFinished,
    Delta,
    Failure,
    Item,
    LogEntry,
    Record,
    StreamLog,
    ToolCallPiece,
    Usage,
)

_encode = msgspec.json.Encoder().encode
STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "abort": "end_turn"}
# Code in the details of a refusal, after which Anthropic's clients send the whole conversation instead of a thread.
THREAD_UNSUPPORTED = "thread_unsupported_request"
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error(status: int, message: str) -> dict[str, Any]:
    """Return an error in the protocol's format."""
    kind = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of a refusal, as Anthropic's clients read it."""
    body = anthropic_error(error.status, str(error))
    if error.code == THREAD_UNSUPPORTED:
        body["error"]["details"] = {"error_code": error.code}
    return body


ANTHROPIC = EventFormat("/v1/messages", event(b'{"type":"ping"}', b"ping"), error_body=error_body)
Event = tuple[bytes, bytes]  # kind and data


@dataclass(slots=True)
class _Blocks:
    """State of the content blocks after a number of records: the open block, and the index of the next one."""

    records: int = 0
    open: str = ""  # thinking, text, or tool_use; empty: none
    next_index: int = 0
    finish: ChoiceFinished | None = None

    def advance(self, record: Record) -> None:
        """Follow a record without making events."""
        self.records += 1
        match record:
            case Delta(_, text, _, _, reasoning, calls):
                if reasoning:
                    self._enter("thinking")
                if text:
                    self._enter("text")
                for piece in calls:
                    self._enter("tool_use", is_new=bool(piece.id))
            case ChoiceFinished():
                self.open, self.finish = "", record

    def _enter(self, kind: str, *, is_new: bool = False) -> None:
        if self.open != kind or is_new:
            self.open, self.next_index = kind, self.next_index + 1


class AnthropicEncoder:
    """Encoder of one message for one reader."""

    wire = ANTHROPIC

    def __init__(self, head: AnswerHead, *, is_clipped: bool = False, hides_thinking: bool = False) -> None:
        """is_clipped: the context has less room than `max_tokens`, so that a cut answer has reached its end."""
        self._head = head
        self._is_clipped = is_clipped
        self._hides_thinking = hides_thinking
        self._is_plain = False
        self._blocks = _Blocks()

    def for_reader(self, *, resumes: bool) -> Self:
        """Return an encoder for another reader. resumes: with ids and status, which some clients cannot parse."""
        reader = copy.copy(self)
        reader._is_plain, reader._blocks = not resumes, _Blocks()
        return reader

    def opening(self, log: StreamLog) -> bytes:
        """Return the events before the first record."""
        message = self._message(log, [], None, None, self._usage(self._head.prompt_tokens, 0, 0))
        return self._frames([_event("message_start", {"message": message})]) + self.wire.keep_alive

    def encode(self, log: StreamLog, items: list[Item]) -> bytes:
        """Return the events of some items."""
        parts: list[bytes] = []
        for item in items:
            if not isinstance(item, LogEntry):
                parts.append(b"" if self._is_plain else self.wire.status(item))
                continue
            if self._blocks.records != item.seq - 1:
                self._blocks = _Blocks()
                for record in log.records[: item.seq - 1]:
                    self._blocks.advance(record)
            events = list(self._record(item.record))
            self._blocks.records = item.seq
            parts.append(self._frames(events, b"" if self._is_plain else log.cursor_at(item.seq)))
        return b"".join(parts)

    def body(self, log: StreamLog, n: int) -> dict[str, Any]:
        """Return the message, complete. Raises `ApiError` if it failed."""
        blocks: list[tuple[str, ChoiceText]] = []
        finish, usage = None, self._usage(self._head.prompt_tokens, 0, 0)
        for record in log.records:
            match record:
                case Delta(_, text, _, _, reasoning, calls):
                    _append(blocks, "thinking", reasoning)
                    _append(blocks, "text", text)
                    _append_calls(blocks, calls)
                case ChoiceFinished():
                    finish = record
                case Failure():
                    raise failure_error(record)
                case Usage(prompt, completion, cached):
                    usage = self._usage(prompt, completion, cached)
        content = [view for kind, block in blocks for view in self._views(kind, block)]
        return self._message(log, content, *self._stop(finish), usage)

    def _frames(self, events: list[Event], cursor: bytes = b"") -> bytes:
        """Return the frames of some events, of which the last has the position of their record."""
        last = len(events) - 1
        frame = self.wire.frame
        return b"".join([frame(data, kind, cursor if at == last else b"") for at, (kind, data) in enumerate(events)])

    def _record(self, record: Record) -> Iterable[Event]:
        match record:
            case Delta(_, text, _, _, reasoning, calls):
                if reasoning:
                    yield from self._piece("thinking", {"thinking": "", "signature": ""}, self._thinking(reasoning))
                if text:
                    yield from self._piece("text", {"text": ""}, {"type": "text_delta", "text": text})
                for piece in calls:
                    yield from self._call(piece)
            case ChoiceFinished():
                yield from self._close()
                self._blocks.finish = record
            case Failure(message, code, _):
                yield _event("error", anthropic_error(failure_status(code), message))
            case Usage(prompt, completion, cached):
                reason, sequence = self._stop(self._blocks.finish)
                delta = {"stop_reason": reason, "stop_sequence": sequence}
                yield _event("message_delta", {"delta": delta, "usage": self._usage(prompt, completion, cached)})
                yield _event("message_stop", {})

    def _call(self, piece: ToolCallPiece) -> Iterable[Event]:
        if piece.id:
            yield from self._open("tool_use", {"id": piece.id, "name": piece.name, "input": {}})
        if piece.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": piece.arguments})

    def _thinking(self, text: str) -> dict[str, Any]:
        return {"type": "thinking_delta", "thinking": "" if self._hides_thinking else text}

    def _piece(self, kind: str, start: dict[str, Any], delta: dict[str, Any]) -> Iterable[Event]:
        """Yield a piece of a block, which begins if another one is open."""
        if self._blocks.open != kind:
            yield from self._open(kind, start)
        yield self._delta(delta)

    def _open(self, kind: str, start: dict[str, Any]) -> Iterable[Event]:
        yield from self._close()
        self._blocks.open = kind
        self._blocks.next_index += 1
        yield _event("content_block_start", {"index": self._index, "content_block": {"type": kind, **start}})

    def _close(self) -> Iterable[Event]:
        if self._blocks.open:
            if self._blocks.open == "thinking":
                yield self._delta({"type": "signature_delta", "signature": ""})
            yield _event("content_block_stop", {"index": self._index})
            self._blocks.open = ""

    @property
    def _index(self) -> int:
        return self._blocks.next_index - 1

    def _delta(self, delta: dict[str, Any]) -> Event:
        return _event("content_block_delta", {"index": self._index, "delta": delta})

    def _stop(self, finish: ChoiceFinished | None) -> tuple[str | None, str | None]:
        """Return the protocol's reason for the end, and the stop sequence."""
        if finish is None:
            return None, None
        if finish.stop is not None and finish.reason == "stop":
            return "stop_sequence", finish.stop
        if finish.reason == "length" and self._is_clipped:
            return "model_context_window_exceeded", None
        return STOP_REASONS[finish.reason], None

    def _usage(self, prompt: int, completion: int, cached: int) -> dict[str, Any]:
        return {
            "input_tokens": prompt - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": completion,
            "service_tier": "standard",
        }

    def _message(
        self, log: StreamLog, content: list[Any], reason: str | None, sequence: str | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": f"msg_{log.id}",
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        }

    def _views(self, kind: str, block: ChoiceText) -> list[dict[str, Any]]:
        if kind == "thinking":
            return [{"type": kind, "thinking": "" if self._hides_thinking else block.text, "signature": ""}]
        if kind == "text":
            return [{"type": kind, "text": block.text}]
        # A call that was cut is left out: clients would run it, since any input is an object.
        inputs = [(call, parsed_input(call.arguments)) for call in block.calls]
        return [
            {"type": kind, "id": call.id, "name": call.name, "input": given}
            for call, given in inputs
            if given is not None
        ]


def parsed_input(arguments: str) -> dict[str, Any] | None:
    """Return the arguments of a call as an object; None if they are cut."""
    try:
        value = from_json(arguments)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _event(kind: str, fields: dict[str, Any]) -> Event:
    return kind.encode(), _encode({"type": kind, **fields})


def _append(blocks: list[tuple[str, ChoiceText]], kind: str, text: str) -> None:
    if text:
        if not blocks or blocks[-1][0] != kind:
            blocks.append((kind, ChoiceText()))
        blocks[-1][1].text += text


def _append_calls(blocks: list[tuple[str, ChoiceText]], calls: Iterable[ToolCallPiece]) -> None:
    for piece in calls:
        if piece.id:
            blocks.append(("tool_use", ChoiceText()))
        block = blocks[-1][1]
        block.add_calls([ToolCallPiece(0, piece.arguments, piece.id, piece.name)])
