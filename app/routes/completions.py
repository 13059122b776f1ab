"""POST /v1/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from app.protocols.completions import CompletionRequest
from app.routes.responses import answer


async def text_completions(request: Request) -> Response:
    """Continue a text, streamed or whole."""
    return await answer(request, CompletionRequest)
