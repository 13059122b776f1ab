"""/v1/responses: create, read, resume, cancel and delete responses, and count the tokens of an input."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.admission.thread_queue import Caller
from app.conversations.store import StoredResponse
from app.errors import ApiError
from app.generation.generation import Generation
from app.http.answer_stream import STREAM_HEADERS
from app.http.disconnect import run_unless_disconnected
from app.http.security import read_json_body
from app.protocols.responses import PARAMETER_NAMES, InputTokensRequest, ResponsesRequest
from app.protocols.responses_encoder import ResponsesEncoder
from app.protocols.responses_stored import response_body
from app.routes import adopt_missing, authenticate_request, get_service, parse_stream_id, restoring, with_ignored_tools
from app.routes.listing import page
from app.routes.responses import respond_now, stream, stream_headers
from app.routes.stored_context import complete_prompt, complete_response
from app.routes.text import Arrived, answer, expects_status
from app.service import Service
from app.streams.stream_log import CursorError
from app.streams.timeline import IntakeTimeline


async def create_response(request: Request) -> Response:
    """POST /v1/responses: answer an input, streamed or whole, or in the background."""
    return await answer(request, ResponsesRequest, complete_response)


async def response_by_id(request: Request) -> Response:
    """GET /v1/responses/{id}: return a response as of now, or its events. DELETE: remove it, ended if it still runs."""
    if request.method == "DELETE":
        return await _delete(request)
    if _flag(request, "include_obfuscation"):
        message = "include_obfuscation: true is not supported, because events are not padded"
        raise ApiError(400, message, param="include_obfuscation", code="unsupported_parameter")
    after, is_streamed = _starting_after(request), _flag(request, "stream")
    if after is not None and not is_streamed:
        raise ApiError(400, "starting_after needs stream=true", param="starting_after", code="invalid_value")
    live = await _live(request)
    if live is None:
        record = await _stored(request)
        if is_streamed:
            message = f"the events of response {record.id!r} are no longer kept; read the response without stream=true"
            raise ApiError(404, message, param="stream", code="events_not_kept")
        return Response(response_body(record), media_type="application/json")
    generation, encoder = live
    if not is_streamed:
        return await respond_now(generation.log, encoder)
    resumed = await encoder.resume(generation.log, -1 if after is None else after)
    if resumed is None:
        headers = STREAM_HEADERS | stream_headers(generation.log)
        return Response(media_type=encoder.wire.media_type, headers=headers)
    reader, records = resumed
    return stream(generation, records, reader, resumes=expects_status(request))


async def _delete(request: Request) -> Response:
    """Delete a response, and end it if it still runs."""
    owner, given = authenticate_request(request).owner, request.path_params["response_id"]
    service, live = get_service(request), await _live(request)
    await service.saves.settled(given)
    was_stored = await service.store.delete_response(f"resp_{parse_stream_id(given)}", owner)
    if live is not None:
        live[0].cancel()
        service.registry.remove(live[0])
        service.client.adoptions.forget(live[0].log.id)
    elif not was_stored:
        raise response_not_found(given)
    return JSONResponse({"id": given, "object": "response", "deleted": True})


async def cancel_response(request: Request) -> Response:
    """POST /v1/responses/{id}/cancel: end a response and return it. One that has ended stays as it is."""
    live = await _live(request)
    if live is None:
        return Response(response_body(await _stored(request)), media_type="application/json")
    generation, encoder = live
    generation.cancel()
    return await respond_now(generation.log, encoder)


async def input_items(request: Request) -> Response:
    """GET /v1/responses/{id}/input_items: list the items of a stored response's input."""
    owner, given = authenticate_request(request).owner, request.path_params["response_id"]
    record = await get_service(request).store.response(given, owner)
    if record is None:
        raise response_not_found(given)
    return page(request, record.input, "desc")


async def count_input_tokens(request: Request) -> Response:
    """POST /v1/responses/input_tokens: return the number of tokens of the prompt that an input becomes."""
    tenant, service = authenticate_request(request), get_service(request)
    caller = Caller(tenant.id)
    with service.bodies.memory(caller.tenant) as memory:
        body = await read_json_body(request, service.settings, memory)
        parsed = await service.prompts.parse(InputTokensRequest, body, caller)
        arrived = Arrived(parsed, len(body), service, tenant, IntakeTimeline(time.monotonic()), memory)
        parsed = await complete_prompt(arrived)
        text = await service.prompts.render(parsed.chat_prompt, caller, PARAMETER_NAMES)
        work = service.prompts.tokenize(text, caller, add_special_tokens=False, param="input")
        ids = await run_unless_disconnected(request.receive, work)
    response = JSONResponse({"object": "response.input_tokens", "input_tokens": len(ids)})
    return with_ignored_tools(request, response, parsed.ignored_tools)


async def _live(request: Request) -> tuple[Generation, ResponsesEncoder] | None:
    """Return the client's own response and its encoder; None if its stream is not kept."""
    service, owner = get_service(request), authenticate_request(request).owner
    given = request.path_params["response_id"]
    await adopt_missing(service, parse_stream_id(given), owner)
    return live_response(service, owner, given)


def live_response(service: Service, owner: str, given: str) -> tuple[Generation, ResponsesEncoder] | None:
    """Return an owner's response by its id, with its encoder; None if its stream is not kept."""
    try:
        generation = service.registry.get(parse_stream_id(given), owner)
    except CursorError as error:
        if error.status == 503:
            raise restoring(error) from None
        return None
    encoder = generation.encoder
    return (generation, encoder) if isinstance(encoder, ResponsesEncoder) else None


async def _stored(request: Request) -> StoredResponse:
    """Return the client's own response from the store. Raises `ApiError` (404) for an unknown one."""
    owner, given = authenticate_request(request).owner, request.path_params["response_id"]
    service = get_service(request)
    await service.saves.settled(given)
    record = await service.store.response(given, owner)
    if record is None or not record.has_ended:
        raise response_not_found(given)
    return record


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


def response_not_found(given: str) -> ApiError:
    """Return the error (404) for a response that does not exist or has another owner."""
    message = f"response {given[:80]!r} does not exist or has expired"
    return ApiError(404, message, param="response_id", code="response_not_found")
