"""`/v1/completions`: request, chunks and response."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from app.errors import ApiError
from app.generation.request import GenerationRequest
from app.protocols.answers import AnswerOptions, ChoiceText, OpenAIEncoder, prompt_logprobs
from app.protocols.common import SamplingFields
from app.protocols.schema import MAX_CONTENT_PARTS, TokenIds, only_value
from app.streams.stream_log import Delta, TokenInfo

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 1024  # of one request


class CompletionRequest(SamplingFields):
    """Body of `POST /v1/completions`. One prompt or several, as text or as token ids."""

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)]
        | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)]
    ) = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    logprobs: int | None = Field(None, ge=0, le=20)
    suffix: Annotated[str, only_value("")] | None = None
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=16)

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        super().check()
        best_of, n = self.best_of or 1, self.n or 1
        fault = None
        if self.max_tokens == 0 and not self.echo:
            fault = "max_tokens", "max_tokens must be at least 1 unless echo is true, got 0"
        elif self.best_of is not None and best_of < n:
            fault = "best_of", f"best_of must be at least n ({n}), got {best_of}"
        elif best_of > n and self.stream:
            fault = "best_of", "best_of cannot be streamed, because all choices must be complete to compare them"
        if fault is not None:
            raise ApiError(400, fault[1], param=fault[0], code="invalid_value")

    @property
    def prompts(self) -> list[str | list[int]]:
        """Return the prompts."""
        if isinstance(self.prompt, list) and not isinstance(self.prompt[0], int):
            return list(self.prompt)
        return [self.prompt]

    def generation_request(self, resume_seconds: float = 0.0) -> GenerationRequest:
        """Return the request of the first prompt. Without `max_tokens` it has the protocol's default limit."""
        is_compared = self.best_of is not None and self.best_of > (self.n or 1)
        logprobs = 0 if is_compared and self.logprobs is None else self.logprobs
        return self.request(
            self.prompts[0],
            CompletionEncoder,
            max_tokens=self.max_tokens,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            logprobs=logprobs,
            options=AnswerOptions((self.n or 1) if is_compared else None, self.logprobs is not None),
            echo=bool(self.echo),
            choices=self.best_of,
            resume_seconds=resume_seconds,
        )

    def generation_requests(self, resume_seconds: float = 0.0, resume_header: str = "") -> list[GenerationRequest]:
        """Return a request for each prompt. Raises `ApiError` for several prompts that should be resumable.

        resume_header: name of the header that asks for that, for the error.
        """
        prompts = self.prompts
        if len(prompts) > MAX_PROMPTS:
            raise ApiError(
                400,
                f"prompt must have at most {MAX_PROMPTS:,} prompts, got {len(prompts):,}",
                param="prompt",
                code="invalid_value",
            )
        if len(prompts) > 1 and resume_seconds:
            raise ApiError(
                400,
                f"{resume_header} needs a single prompt, got {len(prompts)}; send one request for each",
                param=resume_header,
                code="invalid_value",
            )
        if len(prompts) > 1 and self.prediction is not None:
            message = f"prediction needs a single prompt, got {len(prompts)}; send one request for each"
            raise ApiError(400, message, param="prediction", code="invalid_value")
        if len(prompts) > 1 and self.best_of not in (None, self.n or 1):
            raise ApiError(400, "best_of needs a single prompt", param="best_of", code="invalid_value")
        first = self.generation_request(resume_seconds)
        return [first, *(replace(first, prompt=prompt) for prompt in prompts[1:])]


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
        body: dict[str, Any] = {"text": content.text, "logprobs": self._logprobs(content.infos)}
        if content.prompt is not None:
            body["prompt_logprobs"] = prompt_logprobs(content.prompt, self._head.text)
        return body

    def _logprobs(self, infos: Sequence[TokenInfo]) -> dict[str, Any] | None:
        """Return the protocol's parallel lists. A token is listed among its likeliest alternatives, whether or not it
        is one of them. Its offset is the start of its text in the answer's text; a token without visible text, or one
        that only completes a character later, has the offset of the next token.
        """
        if not infos or not self._options.shows_logprobs:
            return None

        lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for info in infos:
            likeliest = {a.token_id: a.logprob for a in info.top} | {info.token_id: info.logprob}
            names = self._names(likeliest)
            top = {names[token_id]: logprob for token_id, logprob in likeliest.items()}
            lists["tokens"].append(names[info.token_id])
            lists["token_logprobs"].append(info.logprob)
            lists["top_logprobs"].append(top if info.logprob is not None else None)
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
