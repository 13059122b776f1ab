"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from app.protocols.chat import ChatRequest
from app.routes.responses import answer


async def chat_completions(request: Request) -> Response:
    """Answer a conversation, streamed or whole."""
    return await answer(request, ChatRequest)
