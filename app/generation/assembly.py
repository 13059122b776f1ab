"""Assembly of a generation from a request in its two forms: the client's, and that for the engine."""

from __future__ import annotations

import math

from app.admission.tenants import TIER_OF_CLASS
from app.engine_client.client import EngineClient
from app.generation.generation import Generation
from app.generation.prepared import PreparedPrompt
from app.generation.request import AnswerHead, GenerationRequest
from app.streams.stream_log import StreamLog
from app.streams.timeline import IntakeTimeline
from app.text.text_model import TextModel
from engine.types import Request

MAX_RESUME_SECONDS = 600.0  # maximum seconds for which an answer continues without a reader


def assemble(
    queued: Request,
    request: GenerationRequest,
    prompt: PreparedPrompt,
    log: StreamLog,
    intake: IntakeTimeline,
    client: EngineClient,
    text: TextModel,
    model: tuple[str, str],
) -> Generation:
    """Return the generation of a request. model: name for clients, and fingerprint."""
    tier, limit = TIER_OF_CLASS[queued.service_class], queued.sampling.max_tokens
    name, fingerprint = model
    head = AnswerHead(name, tier, text, len(queued.prompt), limit, fingerprint)
    return Generation(
        queued,
        text,
        prompt.output_options(request, text),
        log,
        request.encoder(head) if request.encoder is not None else None,
        client,
        intake,
        parser=prompt.parser,
        continues_prompt=request.continues_prompt,
        grace=min(request.resume_seconds, MAX_RESUME_SECONDS) if request.needs_reader else math.inf,
    )
