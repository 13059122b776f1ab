"""/v1/responses: create, read, resume, cancel and delete responses, and count the tokens of an input."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from app.admission.thread_queue import Caller
from app.errors import ApiError
from app.generation.generation import Generation
from app.http.answer_stream import STREAM_HEADERS
from app.http.disconnect import run_unless_disconnected
from app.http.security import read_json_body
from app.protocols.responses import PARAMETER_NAMES, InputTokensRequest, ResponsesRequest
from app.protocols.responses_encoder import ResponsesEncoder
from app.routes import authenticate_request, get_service, parse_stream_id, with_ignored_tools
from app.routes.responses import stream, stream_headers
from app.routes.text import answer, expects_status
from app.streams.stream_log import CursorError
from app.streams.tail import MAX_RECORDS_PER_TURN


async def create_response(request: Request) -> Response:
    """POST /v1/responses: answer an input, streamed or whole."""
    return await answer(request, ResponsesRequest)


async def response_by_id(request: Request) -> Response:
    """GET /v1/responses/{id}: return a response as of now, or its events. DELETE: remove it, ended if it still runs."""
    generation, encoder = _find(request)
    if request.method == "DELETE":
        generation.cancel()
        get_service(request).registry.remove(generation)
        return JSONResponse({"id": request.path_params["response_id"], "object": "response", "deleted": True})
    if _flag(request, "include_obfuscation"):
        message = "include_obfuscation: true is not supported, because events are not padded"
        raise ApiError(400, message, param="include_obfuscation", code="unsupported_parameter")
    after = _starting_after(request)
    if not _flag(request, "stream"):
        if after is not None:
            raise ApiError(400, "starting_after needs stream=true", param="starting_after", code="invalid_value")
        return await _snapshot(generation, encoder)
    resumed = await encoder.resume(generation.log, -1 if after is None else after)
    if resumed is None:
        headers = STREAM_HEADERS | stream_headers(generation.log)
        return Response(media_type=encoder.wire.media_type, headers=headers)
    reader, records = resumed
    return stream(generation, records, reader, resumes=expects_status(request))


async def cancel_response(request: Request) -> Response:
    """POST /v1/responses/{id}/cancel: end a response and return it. One that has ended stays as it is."""
    generation, encoder = _find(request)
    generation.cancel()
    return await _snapshot(generation, encoder)


async def input_items(request: Request) -> NoReturn:
    """GET /v1/responses/{id}/input_items: refuse, because inputs are not stored."""
    authenticate_request(request)
    raise ApiError(404, "The items of inputs are not stored on this server.", code="items_not_stored")


async def count_input_tokens(request: Request) -> Response:
    """POST /v1/responses/input_tokens: return the number of tokens of the prompt that an input becomes."""
    caller, service = Caller(authenticate_request(request).id), get_service(request)
    with service.bodies.memory(caller.tenant) as memory:
        body = await read_json_body(request, service.settings, memory)
        parsed = await service.prompts.parse(InputTokensRequest, body, caller)
        service.check_model(parsed.model)
        text = await service.prompts.render(parsed.chat_prompt, caller, PARAMETER_NAMES)
        work = service.prompts.tokenize(text, caller, add_special_tokens=False, param="input")
        ids = await run_unless_disconnected(request.receive, work)
    response = JSONResponse({"object": "response.input_tokens", "input_tokens": len(ids)})
    return with_ignored_tools(request, response, parsed.ignored_tools)


async def refuse_websocket(socket: WebSocket) -> NoReturn:
    """Refuse a WebSocket to /v1/responses before the upgrade."""
    raise ApiError(404, "/v1/responses is served over HTTP only; /v1/realtime is a WebSocket", code="http_only")


def _find(request: Request) -> tuple[Generation, ResponsesEncoder]:
    """Return the client's own response, and its encoder. Raises `ApiError` (404) for an unknown one."""
    owner, given = authenticate_request(request).owner, request.path_params["response_id"]
    try:
        generation = get_service(request).registry.get(parse_stream_id(given), owner)
    except CursorError:
        raise _not_found(given) from None
    if not isinstance(generation.encoder, ResponsesEncoder):
        raise _not_found(given)
    return generation, generation.encoder


def _starting_after(request: Request) -> int | None:
    value = request.query_params.get("starting_after")
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 12):
        message = f"starting_after must be the sequence_number of an event, got {value[:40]!r}"
        raise ApiError(400, message, param="starting_after", code="invalid_value")
    return int(value)


def _flag(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "false").lower()
    if value not in ("true", "false"):
        raise ApiError(400, f"{name} must be true or false, got {value[:40]!r}", param=name, code="invalid_value")
    return value == "true"


async def _snapshot(generation: Generation, encoder: ResponsesEncoder) -> Response:
    """Return the response as of now."""
    log = generation.log

    def body() -> bytes:
        return msgspec.json.encode(encoder.response(log))

    content = body() if len(log.records) <= MAX_RECORDS_PER_TURN else await asyncio.to_thread(body)
    return Response(content, media_type="application/json", headers=stream_headers(log))


def _not_found(given: str) -> ApiError:
    message = f"response {given[:80]!r} does not exist or has expired; responses are kept for a while but not stored"
    return ApiError(404, message, param="response_id", code="response_not_found")
