"""Common parts of the text protocols' answers: chunks from single records, and whole answers from all records."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from app.errors import NON_RETRYABLE_CODES, ApiError, error_body, failure_status
from app.generation.request import AnswerHead
from app.http.sse import EventFormat
from app.streams.stream_log import (
    ChoiceFinished,
    ChoiceStarted,
    Delta,
    Failure,
    Item,
    LogEntry,
    PromptInfos,
    StreamLog,
    TokenInfo,
    ToolCallPiece,
    Usage,
)
from app.text.text_model import TextModel
from engine.types import StatusEvent

_encode = msgspec.json.Encoder().encode
OPENAI = EventFormat("/v1/", end_mark=b"[DONE]")


@dataclass
class ToolCall:
    """Complete tool call, or as much of it as there is. arguments: the text of a JSON object."""

    id: str
    name: str
    arguments: str


@dataclass
class ChoiceText:
    """Output of one choice."""

    text: str = ""
    reasoning: str = ""
    infos: list[TokenInfo] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    prompt: tuple[TokenInfo, ...] | None = None  # log-probabilities of the prompt, if requested
    finish: str = "stop"

    @property
    def mean_logprob(self) -> float:
        """Return the mean log-probability of its tokens; minus infinity without any."""
        values = [info.logprob for info in self.infos if info.logprob is not None]
        return sum(values) / len(values) if values else -math.inf

    def add_calls(self, pieces: Iterable[ToolCallPiece]) -> None:
        """Append pieces of tool calls."""
        for piece in pieces:
            if piece.index == len(self.calls):
                self.calls.append(ToolCall(piece.id, piece.name, piece.arguments))
            else:
                self.calls[piece.index].arguments += piece.arguments


@dataclass(frozen=True)
class AnswerOptions:
    """Options of an answer beside its usage reports.

    best: number of choices to return, those with the highest mean log-probability; None: all. shows_logprobs: whether
    log-probabilities were requested, rather than only needed for `best`. denies_store: the client asked for the answer
    to be stored, and the answer says that it is not.
    """

    best: int | None = None
    shows_logprobs: bool = True
    denies_store: bool = False


@dataclass(frozen=True)
class UsageReports:
    """Usage information in a stream.

    at_end: whether a final chunk has the full usage. prompt_tokens: the number of prompt tokens, if each chunk has the
    usage of its choice so far; else None.
    """

    at_end: bool = False
    prompt_tokens: int | None = None


@dataclass
class TokenCounter:
    """Cumulative token counts of each choice, continued from the last call, because every chunk needs them."""

    log: StreamLog
    seq: int = 0
    tokens: dict[int, int] = field(default_factory=dict)

    def up_to(self, seq: int, choice: int) -> int:
        """Return the tokens of a choice up to record `seq`, which must not be before that of the last call."""
        for record in self.log.records[self.seq : seq]:
            if isinstance(record, Delta):
                self.tokens[record.choice] = self.tokens.get(record.choice, 0) + record.tokens
        self.seq = seq
        return self.tokens.get(choice, 0)


class OpenAIEncoder(ABC):
    """Encoder of a log in one protocol. A record gives the same bytes whenever it is read."""

    __slots__ = ("_chunk_start", "_counted", "_head", "_is_plain", "_options", "_reports")

    wire = OPENAI
    prefix: str  # of the answer's id
    chunk_object: str
    body_object: str

    def __init__(self, head: AnswerHead, reports: UsageReports, options: AnswerOptions = AnswerOptions()) -> None:
        self._head = head
        self._options = options
        self._reports = reports
        self._is_plain = False
        self._counted: TokenCounter | None = None
        self._chunk_start: tuple[StreamLog, bytes] | None = None  # beginning of each chunk of a log

    def for_reader(self, *, resumes: bool) -> Self:
        """Return an encoder for another reader. resumes: with ids and status, which some clients cannot parse."""
        reader = copy.copy(self)
        reader._is_plain, reader._counted = not resumes, None
        return reader

    @abstractmethod
    def start(self) -> dict[str, Any] | None:
        """Return the first chunk's part for a choice that begins; None for no such chunk."""

    @abstractmethod
    def delta(self, delta: Delta) -> dict[str, Any]:
        """Return a chunk's part with more text of a choice."""

    @abstractmethod
    def finished(self) -> dict[str, Any]:
        """Return a chunk's part for a choice that ends; the reason is added."""

    @abstractmethod
    def choice_body(self, content: ChoiceText) -> dict[str, Any]:
        """Return a choice of an answer that is not streamed; index and reason are added."""

    def shared_body(self, content: ChoiceText) -> dict[str, Any]:
        """Return fields of an answer that is not streamed, beside its choices, from the first choice."""
        return {}

    def opening(self, log: StreamLog) -> bytes:
        """Return nothing: the first block is that of the first record."""
        return b""

    def encode(self, log: StreamLog, items: list[Item]) -> bytes:
        """Return the blocks of some items, joined."""
        blocks = [self._record(log, item) if isinstance(item, LogEntry) else self._status(item) for item in items]
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _block(self, log: StreamLog, seq: int, data: bytes) -> bytes:
        return self.wire.frame(data, cursor=b"" if self._is_plain else log.cursor_at(seq))

    def _status(self, status: StatusEvent) -> bytes:
        return b"" if self._is_plain else self.wire.status(status)

    def body(self, log: StreamLog, n: int) -> dict[str, Any]:
        """Return the body of an answer that is not streamed. Raises `ApiError` if the answer failed."""
        choices = [ChoiceText() for _ in range(n)]
        totals: dict[str, Any] = {}
        for record in log.records:
            match record:
                case Delta(choice, text, _, infos, reasoning, calls):
                    choices[choice].text += text
                    choices[choice].reasoning += reasoning
                    choices[choice].infos += infos
                    choices[choice].add_calls(calls)
                case ChoiceFinished(choice, reason, _):
                    choices[choice].finish = _finish_reason(reason)
                case Failure() as failure:
                    raise failure_error(failure)
                case Usage():
                    totals = usage(record)
                case PromptInfos(choice, prompt):
                    choices[choice].prompt = prompt
                case ChoiceStarted():
                    pass
        if self._options.best is not None:
            choices = sorted(choices, key=lambda choice: -choice.mean_logprob)[: self._options.best]
        return {
            **self._fields(log, self.body_object),
            "choices": [
                {"index": index, **self.choice_body(content), "finish_reason": content.finish}
                for index, content in enumerate(choices)
            ],
            "usage": totals,
            **self.shared_body(choices[0]),
        }

    def _record(self, log: StreamLog, item: LogEntry) -> bytes:
        match item.record:
            case Delta() as delta:  # the common case
                has_content = delta.text or delta.reasoning or delta.infos or delta.calls
                return self._chunk(log, item.seq, delta.choice, self.delta(delta)) if has_content else b""
            case ChoiceStarted(choice):
                opening = self.start()
                return b"" if opening is None else self._chunk(log, item.seq, choice, opening)
            case ChoiceFinished(choice, reason, _):
                return self._chunk(log, item.seq, choice, self.finished(), _finish_reason(reason))
            case PromptInfos():
                return b""  # only in answers that are not streamed
            case Failure(message, code, param):
                body = error_body(failure_status(code), message, param, code)
                return self._block(log, item.seq, msgspec.json.encode(body))
            case Usage() as record:
                block = b""
                if self._reports.at_end:
                    chunk = {**self._fields(log, self.chunk_object), "choices": [], "usage": usage(record)}
                    block = self._block(log, item.seq, msgspec.json.encode(chunk))
                return block + self._block(log, item.seq, self.wire.end_mark)

    def _chunk(
        self, log: StreamLog, seq: int, choice: int, content: dict[str, Any], finish: str | None = None
    ) -> bytes:
        # Most of a chunk is the same in all chunks of an answer, so only the rest is encoded.
        if self._chunk_start is None or self._chunk_start[0] is not log:
            self._chunk_start = (log, msgspec.json.encode(self._fields(log, self.chunk_object))[:-1])
        data = b'%s,"choices":[{"index":%d,%s,"finish_reason":%s}]%s}' % (
            self._chunk_start[1],
            choice,
            _encode(content)[1:-1],
            b"null" if finish is None else _encode(finish),
            self._usage_so_far(log, seq, choice),
        )
        return self._block(log, seq, data)

    def _usage_so_far(self, log: StreamLog, seq: int, choice: int) -> bytes:
        """Return a chunk's usage of its choice up to this record."""
        prompt_tokens = self._reports.prompt_tokens
        if prompt_tokens is None:
            return b',"usage":null' if self._reports.at_end else b""
        if self._counted is None or self._counted.log is not log or self._counted.seq > seq:
            self._counted = TokenCounter(log)
        tokens = self._counted.up_to(seq, choice)
        return b',"usage":' + _encode(
            {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens}
        )

    def _fields(self, log: StreamLog, kind: str) -> dict[str, Any]:
        fields = {
            "id": f"{self.prefix}{log.id}",
            "object": kind,
            "created": int(log.created),
            "model": self._head.model,
            "service_tier": self._head.tier,
            "system_fingerprint": self._head.fingerprint,
        }
        return fields | {"store": False} if self._options.denies_store else fields


def failure_error(failure: Failure) -> ApiError:
    """Return the error of an answer that failed before any of it was sent."""
    # OpenAI's clients check this header before they retry by themselves.
    headers = {"X-Should-Retry": "false"} if failure.code in NON_RETRYABLE_CODES else {}
    status = failure_status(failure.code)
    return ApiError(status, failure.message, param=failure.param, code=failure.code, headers=headers)


def logprob_entries(text: TextModel, infos: Iterable[TokenInfo]) -> list[dict[str, Any]]:
    """Return tokens with their log-probabilities and alternatives, as in chat completions and responses."""

    def entry(token_id: int, logprob: float | None) -> dict[str, Any]:
        raw = text.token_bytes(token_id)
        return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}

    return [
        {**entry(info.token_id, info.logprob), "top_logprobs": [entry(a.token_id, a.logprob) for a in info.top]}
        for info in infos
    ]


def usage(record: Usage) -> dict[str, Any]:
    """Return OpenAI's usage block with the time by phase added."""
    details = {"reasoning_tokens": record.reasoning_tokens}
    if record.prediction is not None:
        details["accepted_prediction_tokens"] = record.prediction.accepted
        details["rejected_prediction_tokens"] = record.prediction.rejected
    return {
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "total_tokens": record.prompt_tokens + record.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": record.cached_tokens},
        "completion_tokens_details": details,
        "time_ms": record.time_ms,
    }


def _finish_reason(reason: str) -> str:
    # The protocols have no reason for a stopped answer; its text until then is a complete, shorter answer.
    return "stop" if reason == "abort" else reason


def prompt_logprobs(infos: Sequence[TokenInfo], text: TextModel) -> list[dict[str, Any] | None]:
    """Return the log-probabilities of a prompt in vLLM's shape: by token id, with the token's text and its rank among
    the alternatives, None if it is not one of them.
    """

    def entry(logprob: float, rank: int | None, token_id: int) -> dict[str, Any]:
        return {
            "logprob": logprob,
            "rank": rank,
            "decoded_token": text.token_bytes(token_id).decode("utf-8", "replace"),
        }

    rows: list[dict[str, Any] | None] = []
    for info in infos:
        if info.logprob is None:
            rows.append(None)
            continue
        row = {str(a.token_id): entry(a.logprob, rank, a.token_id) for rank, a in enumerate(info.top, 1)}
        row.setdefault(str(info.token_id), entry(info.logprob, None, info.token_id))
        rows.append(row)
    return rows
