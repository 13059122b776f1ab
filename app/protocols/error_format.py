"""Error bodies by protocol. A request that a protocol's route refuses gets that protocol's error body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from app.errors import ApiError
from app.protocols.anthropic_encoder import error_body as anthropic_error_body

ErrorFormat = Callable[[ApiError], dict[str, Any]]


def openai_error(error: ApiError) -> dict[str, Any]:
    """Return `{"error": {...}}`, as OpenAI's clients read it."""
    return error.body


# By path; all other paths answer as OpenAI does.
FORMATS: Mapping[str, ErrorFormat] = MappingProxyType({"/v1/messages": anthropic_error_body})


def error_format(path: str) -> ErrorFormat:
    """Return the error format of the protocol that a path belongs to."""
    return next((form for prefix, form in FORMATS.items() if path.startswith(prefix)), openai_error)
