"""Fields of a realtime session and of its responses, and the requests that they make."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from app.generation.request import ChatPrompt, GenerationRequest, Turns
from app.protocols.realtime_items import MAX_ITEMS, ItemFields, few_parts
from app.protocols.schema import DeadlineMs, Metadata, Strict
from engine.types import ServiceClass

SAMPLING_NAMES = ("temperature", "top_p", "seed")
MaxTokens = Annotated[int, Field(ge=1, lt=2**31)] | Literal["inf"]
Modalities = Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)]


class SessionFields(Strict):
    """Fields of `session.update`. `temperature`, `top_p` and `seed` are extensions of the protocol."""

    type: Literal["realtime"] | None = None
    model: str | None = None
    instructions: str | None = None
    output_modalities: Modalities | None = None
    max_output_tokens: MaxTokens | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None


class ResponseFields(Strict):
    """Fields of `response.create`."""

    conversation: Literal["auto", "none"] = "auto"
    input: Annotated[list[ItemFields], Field(fail_fast=True, max_length=MAX_ITEMS), few_parts] | None = None
    instructions: str | None = None
    output_modalities: Modalities | None = None
    max_output_tokens: MaxTokens | None = None
    metadata: Metadata | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    deadline_ms: DeadlineMs | None = None  # an extension too: time until the whole answer must be complete


def token_limit(response: ResponseFields, session: SessionFields) -> int | None:
    """Return the maximum number of tokens of a response; None: as many as fit."""
    limit = response.max_output_tokens or session.max_output_tokens
    return None if limit == "inf" else limit


def generation_request(
    turns: Turns, response: ResponseFields, session: SessionFields, service_class: ServiceClass, stream_id: str
) -> GenerationRequest:
    """Return the request for a response. Its fields replace those of the session."""
    requested = {name: getattr(response, name) for name in SAMPLING_NAMES}
    defaults = {name: getattr(session, name) for name in SAMPLING_NAMES}
    sampling = {name: defaults[name] if value is None else value for name, value in requested.items()}
    limit = "response.max_output_tokens" if response.max_output_tokens else "session.max_output_tokens"
    prompt = "response.input" if response.input is not None else "conversation"
    return GenerationRequest(
        prompt=ChatPrompt(turns=turns),
        sampling={name: value for name, value in sampling.items() if value is not None},
        max_tokens=token_limit(response, session),
        service_class=service_class,
        deadline_ms=response.deadline_ms,
        stream_id=stream_id,
        parameter_names={"prompt": prompt, "max_tokens": limit},
    )
