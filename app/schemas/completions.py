"""`/v1/completions`: request, chunks and response."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field

from app import sse
from app.errors import ApiError, error_body, failure_status
from app.schemas.common import SamplingFields, StreamOptions, TokenIds, usage
from app.streams import Delta, Failure, Finished, Item, Numbered, Opened, StreamLog, TokenInfo, Usage
from app.text import TextModel


class CompletionRequest(SamplingFields):
    """Body of `POST /v1/completions`. One prompt, as text or as token ids."""

    prompt: str | TokenIds | Annotated[list[str], Field(fail_fast=True)] = Field(min_length=1)
    max_tokens: int | None = Field(16, ge=1, lt=2**31)  # 16 is the protocol's default
    logprobs: int | None = Field(None, ge=0, le=20)
    stream_options: StreamOptions | None = None

    def check(self) -> None:
        """What types alone cannot say. Raises `ApiError`."""
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream: true", param="stream_options", code="invalid_value")
        if isinstance(self.prompt, list) and len(self.prompt) > 1 and isinstance(self.prompt[0], str):
            raise ApiError(400, "prompt: one prompt per request", param="prompt", code="unsupported_value")

    @property
    def single_prompt(self) -> str | list[int]:
        """The prompt, out of the list that may be around it."""
        if isinstance(self.prompt, list) and isinstance(self.prompt[0], str):
            return self.prompt[0]
        return self.prompt


class CompletionEncoder:
    """Chunks of one streamed completion."""

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
            case Opened():
                return b""
            case Delta(choice, text, _, infos, offset):
                if not text and not infos:
                    return b""
                return self._chunk(log, item.seq, choice, text, infos=infos, offset=offset)
            case Finished(choice, reason, _):
                return self._chunk(log, item.seq, choice, "", finish="stop" if reason == "abort" else reason)
            case Failure(message, code, param):
                return sse.block(log, item.seq, msgspec.json.encode(error_body(500, message, param, code)))
            case Usage(prompt, completion, cached):
                block = b""
                if self._include_usage:
                    chunk = {**_head(log, self._model, self._tier), "choices": []}
                    chunk["usage"] = usage(prompt, completion, cached)
                    block = sse.block(log, item.seq, msgspec.json.encode(chunk))
                return block + sse.block(log, item.seq, sse.DONE)

    def _chunk(
        self,
        log: StreamLog,
        seq: int,
        choice: int,
        text: str,
        *,
        infos: tuple[TokenInfo, ...] = (),
        offset: int = 0,
        finish: str | None = None,
    ) -> bytes:
        logprobs = _logprobs(infos, self._text, offset) if infos else None
        chunk = _head(log, self._model, self._tier)
        chunk["choices"] = [{"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish}]
        if self._include_usage:
            chunk["usage"] = None
        return sse.block(log, seq, msgspec.json.encode(chunk))


def response(log: StreamLog, n: int, model: str, tier: str, text: TextModel) -> dict[str, Any]:
    """The body of a completion that was not streamed. Raises `ApiError` when it failed."""
    texts: list[list[str]] = [[] for _ in range(n)]
    infos: list[list[TokenInfo]] = [[] for _ in range(n)]
    finish = ["stop"] * n
    totals: dict[str, Any] = {}
    for record in log.records:
        match record:
            case Delta(choice, piece, _, tokens):
                texts[choice].append(piece)
                infos[choice] += tokens
            case Finished(choice, reason, _):
                finish[choice] = "stop" if reason == "abort" else reason
            case Failure(message, code, param):
                raise ApiError(failure_status(code), message, param=param, code=code)
            case Usage(prompt, completion, cached):
                totals = usage(prompt, completion, cached)
            case Opened():
                pass
    return {
        **_head(log, model, tier),
        "choices": [
            {
                "index": i,
                "text": "".join(texts[i]),
                "logprobs": _logprobs(tuple(infos[i]), text, 0) if infos[i] else None,
                "finish_reason": finish[i],
            }
            for i in range(n)
        ],
        "usage": totals,
    }


def _head(log: StreamLog, model: str, tier: str) -> dict[str, Any]:
    return {
        "id": f"cmpl-{log.id}",
        "object": "text_completion",
        "created": int(log.created),
        "model": model,
        "service_tier": tier,
    }


def _logprobs(infos: tuple[TokenInfo, ...], text: TextModel, offset: int) -> dict[str, Any]:
    """The legacy parallel lists."""

    def name(token_id: int) -> str:
        return text.token_bytes(token_id).decode("utf-8", "replace")

    tokens = [name(info.token_id) for info in infos]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [info.logprob for info in infos],
        "top_logprobs": [{name(a.token_id): a.logprob for a in info.top} for info in infos],
        "text_offset": offsets,
    }
