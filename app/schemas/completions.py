"""`/v1/completions`: request, chunks and response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from app.errors import ApiError
from app.schemas.answers import AnswerFormat, Said
from app.schemas.common import MAX_PARTS, Off, SamplingFields, TokenIds, only
from app.streams import Delta, TokenInfo


class CompletionRequest(SamplingFields):
    """Body of `POST /v1/completions`. One prompt, as text or as token ids."""

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(fail_fast=True, max_length=MAX_PARTS)]
        | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_PARTS)]
    ) = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: int | None = Field(None, ge=0, le=20)
    suffix: Annotated[str, only("")] | None = None
    echo: Off | None = None
    best_of: Annotated[int, only(1)] | None = None

    def check(self) -> None:
        """What types alone cannot say. Raises `ApiError`."""
        super().check()
        if isinstance(self.prompt, list) and len(self.prompt) > 1 and not isinstance(self.prompt[0], int):
            raise ApiError(400, "prompt: one prompt per request", param="prompt", code="unsupported_value")

    @property
    def token_limit(self) -> int:
        """The most tokens to generate; 16 is the protocol's default."""
        return self.max_tokens or 16

    @property
    def single_prompt(self) -> str | list[int]:
        """The prompt, out of the list that may be around it."""
        if isinstance(self.prompt, list) and not isinstance(self.prompt[0], int):
            return self.prompt[0]
        return self.prompt


class CompletionFormat(AnswerFormat):
    """Chunks and bodies of text completions."""

    __slots__ = ()

    prefix = "cmpl-"
    chunk_object = whole_object = "text_completion"

    def opened(self) -> None:
        return None

    def delta(self, delta: Delta) -> dict[str, Any]:
        return {"text": delta.text, "logprobs": self._logprobs(delta.infos)}

    def finished(self) -> dict[str, Any]:
        return {"text": "", "logprobs": None}

    def whole_choice(self, said: Said) -> dict[str, Any]:
        return {"text": said.text, "logprobs": self._logprobs(said.infos)}

    def _logprobs(self, infos: Sequence[TokenInfo]) -> dict[str, Any] | None:
        """The protocol's parallel lists. A token stands among its likeliest, whether it is one of them or not. Its
        offset is where its text begins in the answer's: one that shows nothing, or only completes a character later,
        begins where the next one does."""
        if not infos:
            return None

        def name(token_id: int) -> str:
            return self.text.token_bytes(token_id).decode("utf-8", "replace")

        return {
            "tokens": [name(info.token_id) for info in infos],
            "token_logprobs": [info.logprob for info in infos],
            "top_logprobs": [
                {name(a.token_id): a.logprob for a in info.top} | {name(info.token_id): info.logprob} for info in infos
            ],
            "text_offset": [info.offset for info in infos],
        }
