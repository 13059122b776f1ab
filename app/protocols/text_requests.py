"""Schemas of the bodies that are answered with text, by their names in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from app.protocols.anthropic import MessagesRequest
from app.protocols.chat import ChatRequest
from app.protocols.common import TextRequest
from app.protocols.completions import CompletionRequest
from app.protocols.ollama import OllamaChatRequest, OllamaGenerateRequest
from app.protocols.realtime_saved import RealtimeRequest
from app.protocols.responses import ResponsesRequest

TEXT_REQUESTS: Mapping[str, type[TextRequest]] = MappingProxyType(
    {
        schema.__name__: schema
        for schema in (
            ChatRequest,
            CompletionRequest,
            ResponsesRequest,
            MessagesRequest,
            OllamaChatRequest,
            OllamaGenerateRequest,
            RealtimeRequest,
        )
    }
)
