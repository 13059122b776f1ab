"""Output items of a response, and the events of its stream. Independent of transports.

The number of an event, and the items that it refers to, depend on the log up to its record only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import msgspec

from app.generation.request import AnswerHead
from app.protocols.answers import logprob_entries
from app.protocols.responses_items import CALL, MESSAGE, REASONING, ItemKind, OutputItem
from app.streams.stream_log import ChoiceFinished, Delta, Failure, Record, StreamLog, TokenInfo, ToolCallPiece, Usage

OPENING = ("response.created", "response.in_progress")  # events before the first record
MAX_REPEATED_LOGPROBS = 4096  # log-probabilities of a text that a stream repeats at its end; it takes about 10 ms
STATUSES = {
    "stop": "completed",
    "tool_calls": "completed",
    "length": "incomplete",
    "abort": "cancelled",
    "steered": "incomplete",
}
INCOMPLETE_REASONS = {"length": "max_output_tokens", "steered": "steered"}

_encode = msgspec.json.Encoder().encode


class Event(NamedTuple):
    """Event of a stream. data: its JSON, which has kind and number too."""

    kind: str
    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Properties of a response that are known when it is queued.

    request: its fields that repeat the request. namespaces: namespace and name of functions by the names that the model
    calls. has_output: False for a request that only prepares its prompt.
    """

    answer: AnswerHead
    request: dict[str, Any]
    namespaces: Mapping[str, tuple[str, str]]
    has_output: bool = True

    def view(
        self,
        log: StreamLog,
        status: str,
        output: list[dict[str, Any]],
        usage: Usage | None = None,
        failure: Failure | None = None,
        reason: str = "",
    ) -> dict[str, Any]:
        """Return the response in the protocol's format. reason: of its end, as in the log."""
        is_completed = status == "completed" and log.completed is not None
        return {
            "id": f"resp_{log.id}",
            "object": "response",
            "created_at": int(log.created),
            "completed_at": int(log.completed or 0) if is_completed else None,
            "status": status,
            "error": None if failure is None else _response_error(failure),
            "incomplete_details": {"reason": INCOMPLETE_REASONS[reason]} if status == "incomplete" else None,
            "model": self.answer.model,
            "service_tier": self.answer.tier,
            "output": output,
            "usage": None if usage is None else _usage(usage),
            **self.request,
        }

    def opening(self, log: StreamLog, first: int) -> list[Event]:
        """Return the events before the first record, without those before number `first`."""
        response = self.view(log, "in_progress", [])
        return [_event(kind, at, response=response) for at, kind in enumerate(OPENING) if at >= first]


class ResponseOutput:
    """Output of a response as of the first records of its log.

    `advance` adds the next record and returns its events. The cost does not depend on the length of the output, except
    where an item or the response ends.
    """

    __slots__ = (
        "_events",
        "_failure",
        "_head",
        "_item",
        "_log",
        "_max_logprobs",
        "_reason",
        "_usage",
        "first",
        "items",
        "number",
        "records",
    )

    def __init__(self, head: ResponseHead, log: StreamLog, first: float, is_whole: bool = False) -> None:
        """first: number of the first event to return; those before it have been sent. is_whole: no events are sent but
        the whole response, in which all log-probabilities are.
        """
        self._head = head
        self._log = log
        self._events: list[Event] = []
        self._item: OutputItem | None = None  # the last item, while it grows
        self._reason = ""
        self._usage: Usage | None = None
        self._failure: Failure | None = None
        self._max_logprobs = math.inf if is_whole else MAX_REPEATED_LOGPROBS
        self.first = first
        self.items: list[dict[str, Any]] = []  # the complete ones
        self.number = len(OPENING)  # of the next event
        self.records = 0  # added so far

    def checkpoint(self) -> Self:
        """Return a copy that later readers continue from. The text so far is joined, so that checkpoints share it."""
        if self._item is not None:
            self._item.join()
        return self.copy()

    def copy(self) -> Self:
        """Return a copy that continues independently."""
        other = type(self)(self._head, self._log, self.first)
        other._item = None if self._item is None else self._item.copy()
        other.items = list(self.items)
        other.number, other.records, other._reason = self.number, self.records, self._reason
        return other

    @property
    def status(self) -> str:
        """Return the status of the response. It is only queued until the engine has computed a token for it."""
        if self._failure is not None:
            return "failed"
        if self._reason:
            return STATUSES[self._reason]
        status = self._log.status
        is_waiting = not self.records and (status is None or status.state == "queued")
        return "queued" if is_waiting else "in_progress"

    def view(self) -> dict[str, Any]:
        """Return the response in the protocol's format."""
        output = self.items
        if self._item is not None:
            is_growing = self._failure is None and not self._reason
            output = [*output, self._view(self._item, "in_progress" if is_growing else "incomplete")]
        return self._head.view(self._log, self.status, output, self._usage, self._failure, self._reason)

    def advance(self, record: Record) -> list[Event]:
        """Add the next record of the log. Return its events from number `first` on."""
        self.records += 1
        events: list[Event] = []
        self._events = events
        match record:
            case Delta():
                self._add_delta(record)
            case ChoiceFinished(_, reason, _):
                self._finish(reason)
            case Usage():
                self._usage = record
                self._emit("response.completed" if self.status == "completed" else "response.incomplete", is_last=True)
            case Failure(message, code, param):
                self._failure = record
                self._emit("error", code=code, message=message, param=param)
                self._emit("response.failed", is_last=True)
        return events

    def _add_delta(self, delta: Delta) -> None:
        if delta.reasoning:
            self._grow(self._item_of(REASONING), delta.reasoning)
        infos = _text_infos(delta)
        if delta.text or (infos and self._item is not None and self._item.kind is MESSAGE):
            self._grow(self._item_of(MESSAGE), delta.text, infos)
        for piece in delta.calls:
            item = self._open(CALL, piece) if piece.id else self._item
            assert item is not None and item.kind is CALL, "a piece of a tool call must follow its beginning"
            if piece.arguments:
                self._grow(item, piece.arguments)

    def _finish(self, reason: str) -> None:
        if not self._head.has_output:
            self._reason = "stop"
            return
        self._reason = reason
        if self._item is None and not self.items and reason not in ("abort", "steered"):
            self._open(MESSAGE)  # clients expect at least one item
        self._close("completed" if STATUSES[reason] == "completed" else "incomplete")

    def _item_of(self, kind: ItemKind) -> OutputItem:
        """Return the last item if it is of this kind; else begin one."""
        item = self._item
        return item if item is not None and item.kind is kind else self._open(kind)

    def _open(self, kind: ItemKind, call: ToolCallPiece | None = None) -> OutputItem:
        self._close("completed")
        self._item = item = OutputItem(kind, self._log.id, len(self.items), self.records - 1)
        if call is not None:
            item.namespace, item.name = self._head.namespaces.get(call.name, (None, call.name))
            item.call_id = call.id
        self._emit("response.output_item.added", output_index=item.index, item=item.view("in_progress", "", []))
        if kind.part:
            self._emit("response.content_part.added", **item.location, part=item.part(""))
        return item

    def _grow(self, item: OutputItem, text: str, infos: Sequence[TokenInfo] = ()) -> None:
        item.pieces.append(text)
        number = self.number
        self.number += 1
        if number >= self.first:
            tail = b"}"
            if item.kind is MESSAGE:
                tail = b',"logprobs":%s}' % (_encode(self._logprobs(infos)) if infos else b"[]")
            data = b"%s%d%s%s%s" % (item.delta[0], number, item.delta[1], _encode(text), tail)
            self._events.append(Event(item.delta_kind, number, data))

    def _close(self, status: str) -> None:
        item, self._item = self._item, None
        if item is None:
            return
        text, view = item.text, self._view(item, status)
        self.items.append(view)
        if item.kind is CALL:
            self._emit(f"{item.kind.events}.done", **item.location, name=item.name, arguments=text)
        else:
            part = view["content"][0]
            logprobs = {"logprobs": part["logprobs"]} if item.kind is MESSAGE else {}
            self._emit(f"{item.kind.events}.done", **item.location, text=text, **logprobs)
            self._emit("response.content_part.done", **item.location, part=part)
        self._emit("response.output_item.done", output_index=item.index, item=view)

    def _view(self, item: OutputItem, status: str) -> dict[str, Any]:
        text = item.text
        logprobs = self._repeated_logprobs(item) if item.kind is MESSAGE else []
        return item.view(status, text, [item.part(text, logprobs)] if item.kind.part else [])

    def _repeated_logprobs(self, item: OutputItem) -> list[dict[str, Any]]:
        """Return the log-probabilities of an item's tokens; none if there are so many that other requests would wait
        for their encoding.
        """
        if not self._log.logprob_count or self.records - item.first_record > self._max_logprobs:
            return []
        records = self._log.records[item.first_record : self.records]
        infos = [info for record in records if isinstance(record, Delta) for info in _text_infos(record)]
        count = sum(1 + len(info.top) for info in infos)
        return self._logprobs(infos) if count <= self._max_logprobs else []

    def _logprobs(self, infos: Sequence[TokenInfo]) -> list[dict[str, Any]]:
        return logprob_entries(self._head.answer.text, infos)

    def _emit(self, kind: str, is_last: bool = False, **fields: Any) -> None:
        number = self.number
        self.number += 1
        if number >= self.first:
            self._events.append(_event(kind, number, **({"response": self.view()} if is_last else fields)))


def _event(kind: str, number: int, **fields: Any) -> Event:
    return Event(kind, number, _encode({"type": kind, "sequence_number": number, **fields}))


def _text_infos(delta: Delta) -> tuple[TokenInfo, ...]:
    """Return the log-probabilities of a message's text. Reasoning and calls have none in this protocol."""
    return delta.infos if delta.text or not (delta.reasoning or delta.calls) else ()


def _response_error(failure: Failure) -> dict[str, Any]:
    # Clients know a fixed list of codes; this server's own code is the type.
    return {"code": "server_error", "message": failure.message, "param": failure.param, "type": failure.code}


def _usage(record: Usage) -> dict[str, Any]:
    return {
        "input_tokens": record.prompt_tokens,
        "input_tokens_details": {"cached_tokens": record.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": record.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": record.reasoning_tokens},
        "total_tokens": record.prompt_tokens + record.completion_tokens,
        "time_ms": record.time_ms,
    }
