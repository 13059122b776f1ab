"""Encoder of the logs of `/api/chat` and `/api/generate`: Ollama's lines, and whole answers."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from app.errors import ApiError
from app.generation.request import AnswerHead
from app.http.ndjson import LineFormat
from app.protocols.answers import ChoiceText, ToolCall, failure_error, logprob_entries
from app.protocols.anthropic_encoder import parsed_input
from app.streams.stream_log import ChoiceFinished, Delta, Failure, Item, LogEntry, Record, StreamLog, TokenInfo, Usage
from engine.types import Phase

_encode = msgspec.json.Encoder().encode
DONE_REASONS = {"length": "length"}  # any other end is "stop"
NANOSECONDS_PER_MS = 1_000_000


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of a refusal, as Ollama's clients read it."""
    return {"error": str(error)}


OLLAMA = LineFormat("/api/", error_body)


def timestamp(seconds: float) -> str:
    """Return a time by the wall clock as Ollama writes it (RFC 3339)."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class OllamaEncoder(ABC):
    """Encoder of one answer for one reader."""

    wire = OLLAMA

    def __init__(self, head: AnswerHead, *, name: str | None) -> None:
        """name: of the model, as the client wrote it, if it did."""
        self._head = head
        self._name = name or head.model
        self._records = 0  # that were encoded
        self._call: ToolCall | None = None  # not complete yet
        self._reason = "stop"

    @staticmethod
    @abstractmethod
    def piece(text: str, thinking: str = "", calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Return the fields of a line with a piece of the answer."""

    def for_reader(self, *, resumes: bool) -> Self:
        """Return an encoder for another reader."""
        reader = copy.copy(self)
        reader._records, reader._call, reader._reason = 0, None, "stop"
        return reader

    def opening(self, log: StreamLog) -> bytes:
        """Return nothing: the first line is that of the first record with text."""
        return b""

    def encode(self, log: StreamLog, items: list[Item]) -> bytes:
        """Return the lines of some items."""
        lines: list[dict[str, Any]] = []
        for item in items:
            if not isinstance(item, LogEntry):
                continue
            while self._records < item.seq - 1:  # a reader that begins in the middle
                self._lines(log, log.records[self._records])
            lines += self._lines(log, item.record)
        return b"".join([self.wire.frame(_encode(line)) for line in lines])

    def body(self, log: StreamLog, n: int) -> dict[str, Any]:
        """Return the answer, complete. Raises `ApiError` if it failed."""
        content, reason, totals = ChoiceText(), "stop", {}
        for record in log.records:
            match record:
                case Delta(_, text, _, infos, reasoning, calls):
                    content.text += text
                    content.reasoning += reasoning
                    content.infos += infos
                    content.add_calls(calls)
                case ChoiceFinished():
                    reason = record.reason
                case Failure():
                    raise failure_error(record)
                case Usage():
                    totals = _totals(record)
        views = [view for call in content.calls if (view := _view(call)) is not None]
        piece = self.piece(content.text, content.reasoning, views) | self._logprobs(content.infos)
        return self._line(log, piece, is_last=True) | {"done_reason": DONE_REASONS.get(reason, "stop"), **totals}

    def _lines(self, log: StreamLog, record: Record) -> list[dict[str, Any]]:
        """Return the lines of the next record."""
        self._records += 1
        pieces: list[dict[str, Any]] = []
        match record:
            case Delta(_, text, _, infos, reasoning, calls):
                if text or reasoning or infos:
                    pieces.append(self.piece(text, reasoning) | self._logprobs(infos))
                for call in calls:
                    if call.id:
                        pieces += self._complete_call()
                        self._call = ToolCall(call.id, call.name, call.arguments)
                    elif self._call is not None:
                        self._call.arguments += call.arguments
            case ChoiceFinished(_, reason, _):
                pieces += self._complete_call()
                self._reason = DONE_REASONS.get(reason, "stop")
            case Failure(message, _, _):
                return [{"error": message}]
            case Usage():
                last = self._line(log, self.piece(""), is_last=True)
                return [last | {"done_reason": self._reason, **_totals(record)}]
        return [self._line(log, piece) for piece in pieces]

    def _complete_call(self) -> list[dict[str, Any]]:
        """Return the piece of the open call, which is complete. A call that was cut is left out: clients would run it,
        since any arguments are an object.
        """
        call, self._call = self._call, None
        view = None if call is None else _view(call)
        return [] if view is None else [self.piece("", calls=[view])]

    def _line(self, log: StreamLog, piece: Mapping[str, Any], *, is_last: bool = False) -> dict[str, Any]:
        return {"model": self._name, "created_at": timestamp(log.created), **piece, "done": is_last}

    def _logprobs(self, infos: Sequence[TokenInfo]) -> dict[str, Any]:
        return {"logprobs": logprob_entries(self._head.text, infos)} if infos else {}


class ChatLines(OllamaEncoder):
    """Encoder of `/api/chat`."""

    @staticmethod
    def piece(text: str, thinking: str = "", calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = calls
        return {"message": message}


class GenerateLines(OllamaEncoder):
    """Encoder of `/api/generate`."""

    @staticmethod
    def piece(text: str, thinking: str = "", calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        return {"response": text} | ({"thinking": thinking} if thinking else {})


def _view(call: ToolCall) -> dict[str, Any] | None:
    """Return a call; None if it was cut."""
    arguments = parsed_input(call.arguments or "{}")
    if arguments is None:
        return None
    return {"id": call.id, "function": {"name": call.name, "arguments": arguments}}


def _totals(usage: Usage) -> dict[str, int]:
    """Return numbers of tokens, and times in nanoseconds."""
    spent = {phase: int(NANOSECONDS_PER_MS * ms) for phase, ms in usage.time_ms.items()}
    return {
        "total_duration": sum(spent.values()),
        "load_duration": 0,
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": spent.get(Phase.PREFILL, 0),
        "eval_count": usage.completion_tokens,
        "eval_duration": spent.get(Phase.DECODE, 0),
    }
