"""Realtime response: one answer of a session, in progress or ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from app.generation.generation import Generation
from app.protocols.realtime_fields import ResponseFields
from app.protocols.realtime_output import ResponseOutput


@dataclass
class RealtimeResponse:
    """Response in progress, and its outcome."""

    id: str
    fields: ResponseFields
    limit: int | None  # maximum tokens; None: as many as fit
    output: ResponseOutput
    generation: Generation | None = None
    task: asyncio.Task[None] | None = None
    cancelled: bool = False

    @property
    def status(self) -> str:
        """Return the outcome."""
        if self.output.failure is not None:
            return "failed"
        if self.cancelled or self.output.finish == "abort":  # in this session or over another connection
            return "cancelled"
        return "incomplete" if self.output.finish == "length" else "completed"

    def created_view(self) -> dict[str, Any]:
        """Return the response in the protocol's format as it begins."""
        return self._view("in_progress", [])

    def done_view(self) -> dict[str, Any]:
        """Return the response in the protocol's format at its end."""
        return self._view(self.status, [item.view() for item in self.output.items])

    def _view(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        view: dict[str, Any] = {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": self._details(status),
            "output": output,
            "output_modalities": ["text"],
            "conversation_id": None,
            "max_output_tokens": self.limit or "inf",
            "metadata": self.fields.metadata,
            "usage": self._usage(),
        }
        return view | {"ignored_tools": self.fields.ignored_tools} if self.fields.ignored_tools else view

    def _details(self, status: str) -> dict[str, Any] | None:
        failure = self.output.failure
        match status:
            case "cancelled":
                return {"type": "cancelled", "reason": "client_cancelled"}
            case "incomplete":
                return {"type": "incomplete", "reason": "max_output_tokens"}
            case "failed" if failure is not None:
                error = {"type": "server_error", "code": failure.code, "message": failure.message}
                return {"type": "failed", "error": error}
        return None

    def _usage(self) -> dict[str, Any] | None:
        usage = self.output.usage
        if usage is None:
            return None
        prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        return {
            "total_tokens": prompt + completion,
            "input_tokens": prompt,
            "output_tokens": completion,
            "input_token_details": {"text_tokens": prompt, "audio_tokens": 0, "cached_tokens": cached},
            "output_token_details": {"text_tokens": completion, "audio_tokens": 0},
        }
