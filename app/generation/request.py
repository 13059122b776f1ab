"""GenerationRequest: one request for text in terms of the engine, as every protocol builds it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.generation.generation import Generation
from app.store.entries import Origin
from app.streams.stream_log import Encoder
from app.text.content_format import ContentFormat
from app.text.text_model import TextModel
from app.text.tools.definitions import ToolUse
from engine.types import SamplingParams, ServiceClass

Turns = list[dict[str, Any]]  # of a conversation, as chat templates read them


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """Conversation that the chat template renders.

    variables: further variables of the template. tools: those that the answer may call. continue_final_message: the
    answer continues the last message.
    """

    turns: Turns
    tools: ToolUse | None = None
    variables: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Properties of an answer that are known when it is queued, for its encoder."""

    model: str
    tier: str
    text: TextModel
    prompt_tokens: int
    max_tokens: int = 0  # limit of each choice
    fingerprint: str = ""


class Observer(Protocol):
    """Observer of one generation, on the event loop."""

    def queued(self, generation: Generation) -> None:
        """Handle that the request was queued."""
        ...

    def ended(self, generation: Generation) -> None:
        """Handle that its log is closed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Prompt and parameters of one request, independent of its protocol.

    prompt: a conversation, a text, or token ids. sampling: the fields of `SamplingParams` that the client has set; the
    checkpoint's recommendations replace missing ones. max_tokens: None for `default_max_tokens`, or if that is None
    too, as many as fit. service_class: None for the highest up to standard that the tenant may use. deadline_ms: from
    arrival to the last token; None for the tenant's default. content_format: constraint on the content.
    thinking_budget: maximum number of reasoning tokens, after which the block is closed. prediction: text that the
    answer is expected to repeat; None: there is none. speculation: False for no drafts. clips_max_tokens: reduce
    `max_tokens` to the room that the context has left, instead of refusing the request. truncates_prompt: drop the
    oldest turns of a conversation that does not fit. resume_seconds: time for which the answer continues without a
    reader. session_seconds: for which the conversation is expected to go on after the answer. needs_reader: False if
    the answer continues without a reader until its end. origin: the client's request, for the journal; None: it is not
    resumable. parameter_names: the protocol's names of engine parameters that it names differently. encoder:
    constructor of the encoder for readers that resume the stream; None if it cannot be resumed. observer: notified of
    the beginning and the end of the generation.
    """

    prompt: ChatPrompt | str | Sequence[int]
    sampling: Mapping[str, Any]
    max_tokens: int | None = None
    default_max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    includes_stop: bool = False
    shows_special_tokens: bool = False
    echo: bool = False
    lists_prompt: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    model: str | None = None
    service_class: ServiceClass | None = None
    priority: int = 0
    deadline_ms: int | None = None
    content_format: ContentFormat | None = None
    thinking_budget: int | None = None
    prediction: str | None = None
    speculation: bool = True
    clips_max_tokens: bool = False
    truncates_prompt: bool = False
    stream_id: str | None = None
    resume_seconds: float = 0.0
    session_seconds: float = 0.0
    origin: Origin | None = None
    needs_reader: bool = True
    parameter_names: Mapping[str, str] = field(default_factory=dict)
    encoder: Callable[[AnswerHead], Encoder] | None = None
    observer: Observer | None = None

    @property
    def forces_calls(self) -> bool:
        """Return whether the answer must have tool calls, after which the server may end it."""
        tools = self.prompt.tools if isinstance(self.prompt, ChatPrompt) else None
        return tools is not None and tools.choice == "required"

    @property
    def continues_prompt(self) -> bool:
        """Return whether the answer continues the prompt's text, instead of being a message of its own."""
        return not isinstance(self.prompt, ChatPrompt) or self.prompt.continue_final_message

    def token_limit(self, room: int) -> int:
        """Return the maximum number of tokens to generate, given the number that context and KV cache have left."""
        if self.max_tokens == 0:
            return 1  # the engine samples at least one token, which is discarded
        if self.max_tokens is not None:
            return min(self.max_tokens, room) if self.clips_max_tokens else self.max_tokens
        if self.default_max_tokens is None:
            return room
        return min(max(self.default_max_tokens, int(self.sampling.get("min_tokens", 0))), room)

    def sampling_params(self, room: int, eos: frozenset[int], recommended: Mapping[str, float]) -> SamplingParams:
        """Return the engine's sampling parameters. Without a seed, a random one is drawn.

        room: see `token_limit`. eos: end-of-text ids. recommended: values of the checkpoint for fields that the client
        has not set.
        """
        stop_ids = frozenset(self.stop_token_ids) | (frozenset() if self.ignore_eos else eos)
        values = {"seed": secrets.randbits(64)} | effective_defaults(recommended) | dict(self.sampling)
        return SamplingParams(
            **values,
            max_tokens=self.token_limit(room),
            stop_token_ids=tuple(sorted(stop_ids)),
            has_stop_strings=bool(self.stop) or self.forces_calls,
        )


def effective_defaults(recommended: Mapping[str, float]) -> dict[str, float]:
    """Return the sampling parameters of a request that sets none: the checkpoint's, else neutral ones."""
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    return neutral | dict(recommended)
