"""POST /v1/messages, POST /v1/messages/count_tokens."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.admission.thread_queue import Caller
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
    caller, service = Caller(authenticate_request(request).id), get_service(request)
    with service.bodies.memory(caller.tenant) as memory:
        body = await read_json_body(request, service.settings, memory)
        parsed = await service.prompts.parse(CountTokensRequest, body, caller)
        service.check_model(parsed.model)
        text = await service.prompts.render(parsed.prompt, caller)
        work = service.prompts.tokenize(text, caller, add_special_tokens=False, param="messages")
        response = JSONResponse({"input_tokens": len(await run_unless_disconnected(request.receive, work))})
    return with_ignored_tools(request, response, parsed.ignored_tools)
