"""POST /v1/messages, POST /v1/messages/count_tokens."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.http.disconnect import run_unless_disconnected
from app.http.security import read_json_body
from app.protocols.anthropic import CountTokensRequest, MessagesRequest
from app.routes import authenticate_request, get_service, with_ignored_tools
from app.routes.text import answer


async def create_message(request: Request) -> Response:
    """Answer a conversation, streamed or whole."""
    return await answer(request, MessagesRequest)


async def count_tokens(request: Request) -> Response:
    """Return the number of tokens of the prompt that a conversation becomes."""
    authenticate_request(request)
    service = get_service(request)
    parsed = await service.prompts.parse(CountTokensRequest, await read_json_body(request, service.settings))
    service.check_model(parsed.model)
    text = await service.prompts.render(parsed.prompt)
    work = service.prompts.tokenize(text, add_special_tokens=False, param="messages")
    response = JSONResponse({"input_tokens": len(await run_unless_disconnected(request.receive, work))})
    return with_ignored_tools(request, response, parsed.ignored_tools)
