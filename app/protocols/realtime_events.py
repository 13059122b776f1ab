"""Wire format of a realtime session: conversation items, responses, and streamed text.

Independent of sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from app.errors import ApiError
from app.generation.generation import Generation
from app.protocols.realtime_fields import ResponseFields
from app.streams.status import status_view
from app.streams.stream_log import ChoiceFinished, Delta, Failure, Item, LogEntry, StreamLog, Usage

encode = msgspec.json.Encoder().encode


@dataclass
class ConversationItem:
    """Message of a conversation, complete or in progress."""

    id: str
    role: str
    text: str
    status: str = "completed"

    def view(self) -> dict[str, Any]:
        """Return the item in the protocol's format."""
        kind = "output_text" if self.role == "assistant" else "input_text"
        return {
            "id": self.id,
            "object": "realtime.item",
            "type": "message",
            "status": self.status,
            "role": self.role,
            "content": [{"type": kind, "text": self.text}],
        }


@dataclass
class RealtimeResponse:
    """Response in progress, and its outcome."""

    id: str
    item: ConversationItem
    fields: ResponseFields
    limit: int | None  # maximum tokens; None: as many as fit
    generation: Generation | None = None
    task: asyncio.Task[None] | None = None
    finish: str = ""
    usage: Usage | None = None
    failure: Failure | None = None
    cancelled: bool = False

    @property
    def location(self) -> dict[str, Any]:
        """Return the fields that locate its text in the session."""
        return {"response_id": self.id, "item_id": self.item.id, "output_index": 0, "content_index": 0}

    @property
    def status(self) -> str:
        """Return the outcome."""
        if self.failure is not None:
            return "failed"
        if self.cancelled or self.finish == "abort":  # in this session or over another connection
            return "cancelled"
        return "incomplete" if self.finish == "length" else "completed"

    def view(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the response in the protocol's format."""
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": self._details(status),
            "output": output,
            "output_modalities": ["text"],
            "conversation_id": None,
            "max_output_tokens": self.limit or "inf",
            "metadata": self.fields.metadata,
            "usage": self._usage(),
        }

    def _details(self, status: str) -> dict[str, Any] | None:
        match status:
            case "cancelled":
                return {"type": "cancelled", "reason": "client_cancelled"}
            case "incomplete":
                return {"type": "incomplete", "reason": "max_output_tokens"}
            case "failed" if self.failure is not None:
                return {"type": "failed", "error": {"type": "server_error", "code": self.failure.code}}
        return None

    def _usage(self) -> dict[str, Any] | None:
        if self.usage is None:
            return None
        prompt, completion, cached = self.usage.prompt_tokens, self.usage.completion_tokens, self.usage.cached_tokens
        return {
            "total_tokens": prompt + completion,
            "input_tokens": prompt,
            "output_tokens": completion,
            "input_token_details": {"text_tokens": prompt, "audio_tokens": 0, "cached_tokens": cached},
            "output_token_details": {"text_tokens": completion, "audio_tokens": 0},
        }


class ResponseEncoder:
    """Encoder of a response's log as messages. It also adds text and outcome to the response, so each record must be
    encoded once.
    """

    __slots__ = ("_delta", "_event_id", "_response")

    def __init__(self, response: RealtimeResponse, event_id: Callable[[], str]) -> None:
        self._response = response
        self._event_id = event_id
        # The part of a delta's message between event id and text, which is the same for every token.
        self._delta = b'",%s,"delta":' % encode(response.location)[1:-1]

    def encode(self, log: StreamLog, items: list[Item]) -> list[bytes]:
        """Return the messages of `items`; items without content have none."""
        return [message for item in items for message in self._messages(item)]

    def _messages(self, item: Item) -> Iterable[bytes]:
        response = self._response
        if not isinstance(item, LogEntry):
            status = {"type": "carousel.status", "event_id": self._event_id(), "response_id": response.id}
            return (encode(status | status_view(item)),)
        match item.record:
            case Delta(text=text, reasoning=reasoning):
                response.item.text += text
                pieces = (b"carousel.reasoning.delta", reasoning), (b"response.output_text.delta", text)
                return [self._text_event(kind, piece) for kind, piece in pieces if piece]
            case ChoiceFinished(_, reason, _):
                response.finish = reason
            case Usage() as usage:
                response.usage = usage
            case Failure() as failure:
                response.failure = failure
        return ()

    def _text_event(self, kind: bytes, text: str) -> bytes:
        start = b'{"type":"%s","event_id":"%s' % (kind, self._event_id().encode())
        return b"%s%s%s}" % (start, self._delta, encode(text))


def error_body(error: ApiError, event_id: str | None) -> dict[str, Any]:
    """Return the content of an `error` event. event_id: that of the refused client event."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {"type": kind, "code": error.code, "message": str(error), "param": error.param, "event_id": event_id}
