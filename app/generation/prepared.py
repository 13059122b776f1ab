"""PreparedPrompt, and the two parts that a request and its prompt become: the engine's, and that of the text."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from app.admission.tenants import Tenant
from app.generation.choice import EchoedPrompt, OutputOptions
from app.generation.request import GenerationRequest
from app.streams.timeline import IntakeTimeline
from app.text.marks import NO_MARKS, Marks
from app.text.output_parser import OutputParser
from app.text.text_model import TextModel
from engine.types import ModelInfo, ReasoningLimit, Request, ServiceClass


def new_stream_id() -> str:
    """Return an unguessable stream id."""
    return secrets.token_hex(12)


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """Token ids of a request's prompt, and what depends on its rendered text.

    parser: constructor of the choices' output parsers. marks: the special tokens that these read. grammar,
    reasoning_limit: constraints of the answer. prediction: tokens of the text that the answer is expected to repeat.
    """

    ids: list[int]
    parser: Callable[[str], OutputParser | None] = lambda name: None
    marks: Marks = NO_MARKS
    echo: EchoedPrompt | None = None
    grammar: str | None = None
    reasoning_limit: ReasoningLimit | None = None
    prediction: tuple[int, ...] = ()

    def output_options(self, request: GenerationRequest, text: TextModel) -> OutputOptions:
        """Return how the tokens of a request become text."""
        return OutputOptions(
            stop=request.stop,
            includes_stop=request.includes_stop,
            shown_tokens=text.special_texts if request.shows_special_tokens else {},
            marks=self.marks,
            echo=self.echo,
            discards_tokens=request.max_tokens == 0,
            lists_prompt=request.lists_prompt,
            counts_prediction=request.prediction is not None,
        )

    def engine_request(
        self,
        request: GenerationRequest,
        text: TextModel,
        model: ModelInfo,
        tenant: Tenant,
        service_class: ServiceClass,
        intake: IntakeTimeline,
    ) -> Request:
        """Return the request for the engine. Its deadline counts from its arrival."""
        room = max(1, model.max_sequence_tokens - len(self.ids))
        sampling = request.sampling_params(room, text.eos_token_ids, text.sampling_defaults)
        if self.grammar is not None or self.reasoning_limit is not None:
            sampling = msgspec.structs.replace(sampling, grammar=self.grammar, reasoning_limit=self.reasoning_limit)
        deadline_ms = tenant.deadline_ms if request.deadline_ms is None else request.deadline_ms
        return Request(
            id=request.stream_id or new_stream_id(),
            prompt=tuple(self.ids),
            sampling=sampling,
            service_class=service_class,
            priority=request.priority,
            n=request.n,
            cache_salt=tenant.owner,
            tenant=tenant.id,
            weight=tenant.weight,
            deadline=None if deadline_ms is None else intake.arrived_at + deadline_ms / 1000,
            client_id=intake.client_id,
            session_seconds=request.session_seconds,
            prediction=self.prediction,
            speculation=request.speculation,
        )
