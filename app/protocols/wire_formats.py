"""Wire formats by path: a request that a protocol's route refuses gets that protocol's error body."""

from __future__ import annotations

from app.protocols.answers import OPENAI
from app.protocols.anthropic_encoder import ANTHROPIC
from app.protocols.ollama_encoder import OLLAMA
from app.streams.wire_format import WireFormat

WIRE_FORMATS: tuple[WireFormat, ...] = (ANTHROPIC, OLLAMA)  # those with their own errors


def wire_format(path: str) -> WireFormat:
    """Return the format of the protocol that a path belongs to; OpenAI's for any other path."""
    return next((form for form in WIRE_FORMATS if path.startswith(form.prefix)), OPENAI)
