"""`/v1/chat/completions`: request, chunks and response."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from app import sse
from app.errors import ApiError, error_body, failure_status
from app.schemas.common import SamplingFields, StreamOptions, Strict, usage
from app.streams import Delta, Failure, Finished, Item, Numbered, Opened, StreamLog, TokenInfo, Usage
from app.text import TextModel


class TextPart(Strict):
    """A part of a message's content; text is the only kind these models read."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        """The content as one string."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class TextFormat(Strict):
    """`response_format`: plain text is what there is."""

    type: Literal["text"]


class ChatRequest(SamplingFields):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(fail_fast=True)] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    stream_options: StreamOptions | None = None
    response_format: TextFormat | None = None

    def check(self) -> None:
        """What types alone cannot say. Raises `ApiError`."""
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream: true", param="stream_options", code="invalid_value")
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs", code="invalid_value")
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise ApiError(
                400,
                f"max_tokens ({self.max_tokens}) and max_completion_tokens ({self.max_completion_tokens}) disagree",
                param="max_completion_tokens",
                code="invalid_value",
            )

    @property
    def token_limit(self) -> int | None:
        """The most tokens to generate; None: as many as fit."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The messages as chat templates take them."""
        return turns(self.messages)


def turns(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates take them. `developer` is OpenAI's newer word for `system`."""
    return [{"role": "system" if m.role == "developer" else m.role, "content": m.text} for m in messages]


class ChatEncoder:
    """Chunks of one streamed answer."""

    def __init__(self, model: str, tier: str, text: TextModel, *, include_usage: bool) -> None:
        self._model = model
        self._tier = tier
        self._text = text
        self._include_usage = include_usage

    def encode(self, log: StreamLog, items: list[Item]) -> bytes:
        """The blocks of a few records at once."""
        return b"".join(
            self._record(log, item) if isinstance(item, Numbered) else sse.status_comment(item) for item in items
        )

    def _record(self, log: StreamLog, item: Numbered) -> bytes:
        match item.record:
            case Opened(choice):
                return self._chunk(log, item.seq, choice, {"role": "assistant", "content": ""})
            case Delta(choice, text, _, infos):
                if not text and not infos:
                    return b""
                return self._chunk(log, item.seq, choice, {"content": text}, infos=infos)
            case Finished(choice, reason, _):
                return self._chunk(log, item.seq, choice, {}, finish=_finish_reason(reason))
            case Failure(message, code, param):
                return sse.block(log, item.seq, msgspec.json.encode(error_body(500, message, param, code)))
            case Usage(prompt, completion, cached):
                block = b""
                if self._include_usage:
                    chunk = {**self._head(log), "choices": [], "usage": usage(prompt, completion, cached)}
                    block = sse.block(log, item.seq, msgspec.json.encode(chunk))
                return block + sse.block(log, item.seq, sse.DONE)

    def _head(self, log: StreamLog) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{log.id}",
            "object": "chat.completion.chunk",
            "created": int(log.created),
            "model": self._model,
            "service_tier": self._tier,
        }

    def _chunk(
        self,
        log: StreamLog,
        seq: int,
        choice: int,
        delta: dict[str, str],
        *,
        infos: tuple[TokenInfo, ...] = (),
        finish: str | None = None,
    ) -> bytes:
        logprobs = {"content": [_logprob(info, self._text) for info in infos], "refusal": None} if infos else None
        chunk = self._head(log)
        chunk["choices"] = [{"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]
        if self._include_usage:
            chunk["usage"] = None
        return sse.block(log, seq, msgspec.json.encode(chunk))


def response(log: StreamLog, n: int, model: str, tier: str, text: TextModel) -> dict[str, Any]:
    """The body of an answer that was not streamed. Raises `ApiError` when it failed."""
    contents: list[list[str]] = [[] for _ in range(n)]
    infos: list[list[TokenInfo]] = [[] for _ in range(n)]
    finish = ["stop"] * n
    totals: dict[str, Any] = {}
    for record in log.records:
        match record:
            case Delta(choice, piece, _, tokens):
                contents[choice].append(piece)
                infos[choice] += tokens
            case Finished(choice, reason, _):
                finish[choice] = _finish_reason(reason)
            case Failure(message, code, param):
                raise ApiError(failure_status(code), message, param=param, code=code)
            case Usage(prompt, completion, cached):
                totals = usage(prompt, completion, cached)
            case Opened():
                pass
    return {
        "id": f"chatcmpl-{log.id}",
        "object": "chat.completion",
        "created": int(log.created),
        "model": model,
        "service_tier": tier,
        "choices": [
            {
                "index": i,
                "message": {"role": "assistant", "content": "".join(contents[i]), "refusal": None},
                "logprobs": {"content": [_logprob(info, text) for info in infos[i]], "refusal": None}
                if infos[i]
                else None,
                "finish_reason": finish[i],
            }
            for i in range(n)
        ],
        "usage": totals,
    }


def _finish_reason(reason: str) -> str:
    # The protocol has no word for "you asked to stop"; what was said until then is a complete, shorter answer.
    return "stop" if reason == "abort" else reason


def _logprob(info: TokenInfo, text: TextModel) -> dict[str, Any]:
    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = text.token_bytes(token_id)
        return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}

    top = [entry(alternative.token_id, alternative.logprob) for alternative in info.top]
    return {**entry(info.token_id, info.logprob), "top_logprobs": top}
