"""Fields that the text protocols share, and their conversion to the engine's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr

from app.admission.tenants import TIERS
from app.errors import ApiError
from app.generation.request import AnswerHead, ChatPrompt, GenerationRequest, Observer
from app.protocols.answers import AnswerOptions, UsageReports
from app.protocols.formats import ResponseFormat, StructuredOutputs
from app.protocols.prediction import PredictedContent
from app.protocols.schema import DeadlineMs, FalseOnly, Metadata, StopString, Strict, TokenIds, max_fields
from app.streams.stream_log import Encoder
from app.text.content_format import ContentFormat
from engine.types import SamplingParams, ServiceClass

SESSION_SECONDS = 300.0  # for which a conversation is expected to go on, if its client gives no time
DAY_SECONDS = 24 * 3600.0


class StreamOptions(Strict):
    """`stream_options` of a streamed request."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: FalseOnly | None = None


class TextRequest(Strict):
    """Body of a request that is answered with text."""

    stream: bool | None = None
    _observer: Observer | None = PrivateAttr(default=None)

    def observed_by(self, observer: Observer) -> Self:
        """Return the request with an observer of its generation."""
        observed = self.model_copy()
        observed._observer = observer
        return observed

    def generation_request(self, resume_seconds: float = 0.0) -> GenerationRequest:
        """Return the request for the service. resume_seconds: time for which it continues without a reader."""
        raise NotImplementedError

    @property
    def is_streamed(self) -> bool:
        """Return whether the answer is sent in pieces."""
        return bool(self.stream)

    @property
    def is_stored(self) -> bool:
        """Return whether the answer can be read later."""
        return False

    @property
    def is_background(self) -> bool:
        """Return whether the answer continues without a reader, and a request for the whole is answered at once."""
        return False

    @property
    def instant_answer(self) -> dict[str, Any] | None:
        """Return the answer to a request that needs no text from the model; None for any other."""
        return None

    @property
    def ignored_tools(self) -> tuple[str, ...]:
        """Return the types of the request's tools that this server does not run."""
        return ()

    def generation_requests(self, resume_seconds: float = 0.0, resume_header: str = "") -> list[GenerationRequest]:
        """Return the request of each prompt. Raises `ApiError` for several prompts that should be resumable.

        resume_header: name of the header that asks for that, for the error.
        """
        return [self.generation_request(resume_seconds)]


class SamplingFields(TextRequest):
    """Sampling and scheduling fields of `/v1/completions` and `/v1/chat/completions`."""

    model: str | None = None
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)  # -1 and 0: off
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    top_n_sigma: float | None = Field(None, ge=0.0, le=100.0)  # 0: off
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    repetition_penalty: float | None = Field(None, ge=1e-6, le=10.0)
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100.0, le=100.0)]], max_fields(1024)] | None = None
    min_tokens: int | None = Field(None, ge=0)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: StopString | Annotated[list[StopString], Field(max_length=4, fail_fast=True)] | None = None
    stop_token_ids: TokenIds | None = Field(None, max_length=64)
    ignore_eos: bool | None = None
    n: int | None = Field(None, ge=1, le=16)
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=20)
    prediction: PredictedContent | None = None
    speculation: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "scale"] | None = None
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    deadline_ms: DeadlineMs | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    # Accepted without effect: they identify the caller or its records and change no text.
    user: str | None = None
    metadata: Metadata | None = None
    safety_identifier: str | None = None
    store: bool | None = None

    @property
    def session_seconds(self) -> float:
        """Return the seconds for which the client expects its conversation to go on; 0 if it says nothing of that."""
        if self.prompt_cache_retention == "24h":
            return DAY_SECONDS
        return SESSION_SECONDS if self.prompt_cache_key is not None else 0.0

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        self.content_format()
        if self.prompt_logprobs is not None and self.stream:
            raise ApiError(
                400,
                "prompt_logprobs cannot be streamed; set stream to false",
                param="prompt_logprobs",
                code="invalid_value",
            )
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream: true", param="stream_options", code="invalid_value")

    @property
    def can_store(self) -> bool:
        """Return whether the protocol can store an answer. One that cannot states so in an answer to `store: true`."""
        return False

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def content_format(self) -> ContentFormat | None:
        """Return the format of the answer. Raises `ApiError` (400) for fields that contradict each other."""
        by_response_format = self.response_format.content_format() if self.response_format is not None else None
        if self.structured_outputs is None:
            return by_response_format
        if by_response_format is not None:
            raise ApiError(
                400,
                "response_format and structured_outputs cannot be combined",
                param="structured_outputs",
                code="invalid_value",
            )
        return self.structured_outputs.content_format()

    @property
    def requested_class(self) -> ServiceClass | None:
        """Return the class that `service_tier` selects; None leaves it to the tenant's limits."""
        if self.service_tier in (None, "auto", "scale"):
            return None
        return TIERS[self.service_tier]

    @property
    def sampling(self) -> dict[str, Any]:
        """Return the engine's sampling parameters that are set. Raises `ApiError` for a wrong `logit_bias`."""
        values = {name: value for name in SAMPLING_NAMES if (value := getattr(self, name)) is not None}
        if self.top_k is not None:
            values["top_k"] = max(0, self.top_k)
        if self.seed is not None:
            values["seed"] = self.seed % 2**64
        if self.logit_bias is not None:
            values["logit_bias"] = _bias(self.logit_bias)
        return values

    def request(
        self,
        prompt: ChatPrompt | str | list[int],
        encoder: Callable[[AnswerHead, UsageReports, AnswerOptions], Encoder],
        *,
        max_tokens: int | None,
        default_max_tokens: int | None = None,
        logprobs: int | None,
        options: AnswerOptions | None = None,
        echo: bool = False,
        names: Mapping[str, str] | None = None,
        thinking_budget: int | None = None,
        choices: int | None = None,
        resume_seconds: float,
    ) -> GenerationRequest:
        """Return the request with this protocol's prompt, limits and encoder. choices: how many to generate, if more
        than `n`. names: see `GenerationRequest`.
        """
        reports = self.stream_options or StreamOptions()
        prompt_logprobs = self.prompt_logprobs
        if echo and logprobs is not None:
            prompt_logprobs = max(logprobs, prompt_logprobs or 0)

        def encoder_for(head: AnswerHead) -> Encoder:
            prompt_tokens = head.prompt_tokens if reports.continuous_usage_stats else None
            usage = UsageReports(bool(reports.include_usage), prompt_tokens)
            return encoder(
                head, usage, replace(options or AnswerOptions(), denies_store=bool(self.store) and not self.can_store)
            )

        return GenerationRequest(
            prompt=prompt,
            sampling=self.sampling | {"logprobs": logprobs, "prompt_logprobs": prompt_logprobs},
            max_tokens=max_tokens,
            default_max_tokens=default_max_tokens,
            stop=self.stops,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            includes_stop=bool(self.include_stop_str_in_output),
            shows_special_tokens=self.skip_special_tokens is False,
            echo=echo,
            lists_prompt=self.prompt_logprobs is not None,
            n=choices or self.n or 1,
            model=self.model,
            service_class=self.requested_class,
            priority=self.priority or 0,
            deadline_ms=self.deadline_ms,
            content_format=self.content_format(),
            thinking_budget=thinking_budget,
            prediction=self.prediction.text if self.prediction is not None else None,
            speculation=self.speculation is not False,
            resume_seconds=resume_seconds,
            session_seconds=self.session_seconds,
            parameter_names=names or {},
            encoder=encoder_for,
            observer=self._observer,
        )


# The engine's parameters that the schema has under the same name and with the same meaning.
SAMPLING_NAMES = tuple(
    name
    for name in SamplingParams.__struct_fields__
    if name in SamplingFields.model_fields and name not in ("stop_token_ids", "prompt_logprobs")
)


Verbosity = Literal["low", "medium", "high"]


def template_variables(effort: str | None, verbosity: Verbosity | None = None) -> dict[str, Any]:
    """Return the template variables for a reasoning effort, of which `none` turns reasoning off where the template can,
    and for the verbosity of the answer.
    """
    variables: dict[str, Any] = {} if verbosity is None else {"verbosity": verbosity}
    if effort is None:
        return variables
    return variables | (
        {"enable_thinking": False, "thinking": False} if effort == "none" else {"reasoning_effort": effort}
    )


def _bias(bias: dict[str, float]) -> dict[int, float]:
    result: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 12):
            raise ApiError(400, f"logit_bias: {key[:80]!r} is not a token id", param="logit_bias", code="invalid_value")
        result[int(key)] = value
    return result
