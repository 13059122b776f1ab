"""What the text protocols' answers have in common: chunks made of records, the whole made of all of them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from app import sse
from app.errors import FINAL, ApiError, error_body, failure_status
from app.streams import Delta, Failure, Finished, Item, Numbered, Opened, StreamLog, TokenInfo, Usage
from app.text import TextModel
from engine.types import StatusEvent

_encode = msgspec.json.Encoder().encode


@dataclass
class Said:
    """All that one choice said."""

    text: str = ""
    infos: list[TokenInfo] = field(default_factory=list)
    finish: str = "stop"


@dataclass(frozen=True)
class UsageReports:
    """What a stream says of the tokens it took. at_end: all that is known, in a chunk of its own. prompt_tokens: how
    many those are, where each chunk says how far its choice has come; else None."""

    at_end: bool = False
    prompt_tokens: int | None = None


@dataclass
class Counted:
    """Tokens of each choice, counted on from where the last reader was: every chunk asks for them."""

    log: StreamLog
    seq: int = 0
    tokens: dict[int, int] = field(default_factory=dict)

    def up_to(self, seq: int, choice: int) -> int:
        """Of a choice, up to a record that is not before those that were counted."""
        for record in self.log.records[self.seq : seq]:
            if isinstance(record, Delta):
                self.tokens[record.choice] = self.tokens.get(record.choice, 0) + record.tokens
        self.seq = seq
        return self.tokens.get(choice, 0)


class AnswerFormat(ABC):
    """One protocol's way to put a log into words. Stateless: a record gives the same bytes whenever it is read."""

    __slots__ = ("_chunk_start", "_counted", "_is_plain", "_model", "_reports", "_tier", "text")

    prefix: str  # of the answer's id
    chunk_object: str
    whole_object: str

    def __init__(self, model: str, tier: str, text: TextModel, reports: UsageReports) -> None:
        self._model = model
        self._tier = tier
        self._reports = reports
        self._is_plain = False
        self.text = text
        self._counted: Counted | None = None
        self._chunk_start: tuple[StreamLog, bytes] | None = None  # what each chunk of a log begins with

    def plain(self) -> Self:
        """The same for a reader that will not come back: no ids, and not a word of where its request stands."""
        plain = copy.copy(self)
        plain._is_plain = True
        return plain

    @abstractmethod
    def opened(self) -> dict[str, Any] | None:
        """A choice begins: what its first chunk says, if there is one."""

    @abstractmethod
    def delta(self, delta: Delta) -> dict[str, Any]:
        """A choice goes on."""

    @abstractmethod
    def finished(self) -> dict[str, Any]:
        """A choice ends; the reason is added."""

    @abstractmethod
    def whole_choice(self, said: Said) -> dict[str, Any]:
        """A choice as part of an answer that is not streamed; index and reason are added."""

    def encode(self, log: StreamLog, items: list[Item]) -> bytes:
        """The blocks of a few records at once."""
        blocks = [self._record(log, item) if isinstance(item, Numbered) else self._status(item) for item in items]
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _block(self, log: StreamLog, seq: int, data: bytes) -> bytes:
        return sse.plain_block(data) if self._is_plain else sse.block(log, seq, data)

    def _status(self, status: StatusEvent) -> bytes:
        return b"" if self._is_plain else sse.status_comment(status)

    def whole(self, log: StreamLog, n: int) -> dict[str, Any]:
        """The body of an answer that was not streamed. Raises `ApiError` when it failed."""
        choices = [Said() for _ in range(n)]
        totals: dict[str, Any] = {}
        for record in log.records:
            match record:
                case Delta(choice, text, _, infos):
                    choices[choice].text += text
                    choices[choice].infos += infos
                case Finished(choice, reason, _):
                    choices[choice].finish = _finish_reason(reason)
                case Failure(message, code, param):
                    # What openai's clients look at before they ask again by themselves.
                    headers = {"X-Should-Retry": "false"} if code in FINAL else {}
                    raise ApiError(failure_status(code), message, param=param, code=code, headers=headers)
                case Usage():
                    totals = usage(record)
                case Opened():
                    pass
        return {
            **self._head(log, self.whole_object),
            "choices": [
                {"index": index, **self.whole_choice(said), "finish_reason": said.finish}
                for index, said in enumerate(choices)
            ],
            "usage": totals,
        }

    def _record(self, log: StreamLog, item: Numbered) -> bytes:
        match item.record:
            case Delta() as delta:  # nearly all of them
                says = delta.text or delta.infos
                return self._chunk(log, item.seq, delta.choice, self.delta(delta)) if says else b""
            case Opened(choice):
                opening = self.opened()
                return b"" if opening is None else self._chunk(log, item.seq, choice, opening)
            case Finished(choice, reason, _):
                return self._chunk(log, item.seq, choice, self.finished(), _finish_reason(reason))
            case Failure(message, code, param):
                body = error_body(failure_status(code), message, param, code)
                return self._block(log, item.seq, msgspec.json.encode(body))
            case Usage() as record:
                block = b""
                if self._reports.at_end:
                    chunk = {**self._head(log, self.chunk_object), "choices": [], "usage": usage(record)}
                    block = self._block(log, item.seq, msgspec.json.encode(chunk))
                return block + self._block(log, item.seq, sse.DONE)

    def _chunk(self, log: StreamLog, seq: int, choice: int, said: dict[str, Any], finish: str | None = None) -> bytes:
        # Most of a chunk is the same in all chunks of an answer, so it is put together around the part that is not.
        if self._chunk_start is None or self._chunk_start[0] is not log:
            self._chunk_start = (log, msgspec.json.encode(self._head(log, self.chunk_object))[:-1])
        data = b'%s,"choices":[{"index":%d,%s,"finish_reason":%s}]%s}' % (
            self._chunk_start[1],
            choice,
            _encode(said)[1:-1],
            b"null" if finish is None else _encode(finish),
            self._usage_so_far(log, seq, choice),
        )
        return self._block(log, seq, data)

    def _usage_so_far(self, log: StreamLog, seq: int, choice: int) -> bytes:
        """What a chunk says of its choice up to this record."""
        prompt_tokens = self._reports.prompt_tokens
        if prompt_tokens is None:
            return b',"usage":null' if self._reports.at_end else b""
        if self._counted is None or self._counted.log is not log or self._counted.seq > seq:
            self._counted = Counted(log)
        tokens = self._counted.up_to(seq, choice)
        return b',"usage":' + _encode(
            {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens}
        )

    def _head(self, log: StreamLog, kind: str) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}{log.id}",
            "object": kind,
            "created": int(log.created),
            "model": self._model,
            "service_tier": self._tier,
        }


def usage(record: Usage) -> dict[str, Any]:
    """OpenAI's usage block, and what the time went to."""
    return {
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "total_tokens": record.prompt_tokens + record.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": record.cached_tokens},
        "time_ms": record.time_ms,
    }


def _finish_reason(reason: str) -> str:
    # The protocols have no word for "you asked to stop"; what was said until then is a complete, shorter answer.
    return "stop" if reason == "abort" else reason
