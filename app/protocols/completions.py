"""`/v1/completions`: request, chunks and response."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import Field

from app.errors import ApiError
from app.generation.request import GenerationRequest
from app.protocols.answers import ChoiceText, OpenAIEncoder
from app.protocols.common import SamplingFields
from app.protocols.schema import MAX_CONTENT_PARTS, FalseOnly, TokenIds, only_value
from app.streams.stream_log import Delta, TokenInfo

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(SamplingFields):
    """Body of `POST /v1/completions`. One prompt, as text or as token ids."""

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)]
        | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)]
    ) = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: int | None = Field(None, ge=0, le=20)
    suffix: Annotated[str, only_value("")] | None = None
    echo: FalseOnly | None = None
    best_of: Annotated[int, only_value(1)] | None = None

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        super().check()
        if isinstance(self.prompt, list) and len(self.prompt) > 1 and not isinstance(self.prompt[0], int):
            raise ApiError(400, "prompt must be a single prompt per request", param="prompt", code="unsupported_value")

    @property
    def single_prompt(self) -> str | list[int]:
        """Return the prompt without the list that may enclose it."""
        if isinstance(self.prompt, list) and not isinstance(self.prompt[0], int):
            return self.prompt[0]
        return self.prompt

    def generation_request(self, resume_seconds: float = 0.0) -> GenerationRequest:
        """Return the request. Without `max_tokens` it has the protocol's default limit."""
        return self.request(
            self.single_prompt,
            CompletionEncoder,
            max_tokens=self.max_tokens,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            logprobs=self.logprobs,
            resume_seconds=resume_seconds,
        )


class CompletionEncoder(OpenAIEncoder):
    """Encoder of text completions."""

    __slots__ = ()

    prefix = "cmpl-"
    chunk_object = body_object = "text_completion"

    def start(self) -> None:
        return None

    def delta(self, delta: Delta) -> dict[str, Any]:
        return {"text": delta.text, "logprobs": self._logprobs(delta.infos)}

    def finished(self) -> dict[str, Any]:
        return {"text": "", "logprobs": None}

    def choice_body(self, content: ChoiceText) -> dict[str, Any]:
        return {"text": content.text, "logprobs": self._logprobs(content.infos)}

    def _logprobs(self, infos: Sequence[TokenInfo]) -> dict[str, Any] | None:
        """Return the protocol's parallel lists. A token is listed among its likeliest alternatives, whether or not it
        is one of them. Its offset is the start of its text in the answer's text; a token without visible text, or one
        that only completes a character later, has the offset of the next token.
        """
        if not infos:
            return None

        lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for info in infos:
            likeliest = {a.token_id: a.logprob for a in info.top} | {info.token_id: info.logprob}
            names = self._names(likeliest)
            lists["tokens"].append(names[info.token_id])
            lists["token_logprobs"].append(info.logprob)
            lists["top_logprobs"].append({names[token_id]: logprob for token_id, logprob in likeliest.items()})
            lists["text_offset"].append(info.offset)
        return lists

    def _names(self, token_ids: Iterable[int]) -> dict[int, str]:
        """Return a unique name for each token: its text; its bytes as OpenAI writes them if they are not text or
        another token has the same text; else its id.
        """
        names: dict[str, int] = {}
        for token_id in token_ids:
            raw = self._head.text.token_bytes(token_id)
            escaped = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
            try:
                candidates = (raw.decode(), escaped)
            except UnicodeDecodeError:
                candidates = (escaped, escaped)
            free = (name for name in (*candidates, f"token_id:{token_id}") if name and name not in names)
            names[next(free)] = token_id
        return {token_id: name for name, token_id in names.items()}
