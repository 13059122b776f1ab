"""/v1/chat/completions: answer conversations, and read and change stored answers."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.conversations.store import Page, StoredCompletion, StoredItem
from app.errors import ApiError
from app.http.json_body import MAX_INLINE_BYTES
from app.protocols.chat import ChatRequest
from app.protocols.chat_stored import CompletionObserver, completion_body, stored_messages
from app.protocols.conversations import MetadataRequest
from app.routes import authenticate_request, get_service
from app.routes.completion_list import list_completions
from app.routes.conversations import read_body
from app.routes.listing import list_response, page
from app.routes.paced_route import PacedRoute
from app.routes.text import Arrived, answer


async def chat_completions(request: Request) -> Response:
    """POST /v1/chat/completions: answer a conversation, streamed or whole. GET: list stored answers."""
    if request.method != "POST":
        return await _list(request)
    return await answer(request, ChatRequest, complete_chat)


async def complete_chat(arrived: Arrived[ChatRequest]) -> ChatRequest:
    """Return a request with an observer that stores its answer, if that was asked for."""
    service, tenant, body = arrived.service, arrived.tenant, arrived.body
    if not body.store:
        return body
    if arrived.size <= MAX_INLINE_BYTES:
        messages = stored_messages(body)
    else:
        messages = await service.prompts.body_queue.run(
            lambda: stored_messages(body), arrived.caller, size=arrived.size
        )
    record = StoredCompletion(
        id="",
        owner=tenant.owner,
        tenant=tenant.id,
        created=0.0,
        model=service.settings.model_name,
        metadata=body.metadata or {},
    )
    return body.observed_by(CompletionObserver(service.store, service.saves, (record, messages)))


async def _list(request: Request) -> Response:
    """Return the stored chat completions of the key."""
    tenant, service = authenticate_request(request), get_service(request)
    await service.request_pace.wait_turn(tenant.id)
    if not service.settings.requires_keys:
        message = (
            "stored chat completions are listed for API keys only, because clients without keys share one owner; read "
            "one by its id"
        )
        raise ApiError(403, message, code="api_key_required")
    found = await list_completions(request, tenant.owner)
    return list_response(
        Page([StoredItem(record.id, completion_body(record)) for record in found.records], found.has_more)
    )


async def completion_by_id(request: Request) -> Response:
    """GET /v1/chat/completions/{id}: return a stored chat completion. DELETE: delete it. POST: replace its metadata."""
    record = await _find(request)
    store = get_service(request).store
    if request.method == "DELETE":
        await store.delete_completion(record.id, record.owner)
        return JSONResponse({"id": record.id, "object": "chat.completion.deleted", "deleted": True})
    if request.method == "POST":
        parsed, _ = await read_body(request, MetadataRequest, lambda _: None)
        store.update_completion(record.id, parsed.metadata or {})
        record = msgspec.structs.replace(record, metadata=parsed.metadata or {})
    return Response(completion_body(record), media_type="application/json")


async def completion_messages(request: Request) -> Response:
    """GET /v1/chat/completions/{id}/messages: list the messages of a stored chat completion's request."""
    return page(request, (await _find(request)).messages, "asc")


async def _find(request: Request) -> StoredCompletion:
    """Return the client's own chat completion. Raises `ApiError` (404) for an unknown one."""
    owner, given = authenticate_request(request).owner, request.path_params["completion_id"]
    service = get_service(request)
    await service.saves.settled(given)
    record = await service.store.completion(given, owner)
    if record is None:
        message = f"chat completion {given[:80]!r} was not stored or has expired; store: true stores one"
        raise ApiError(404, message, param="completion_id", code="completion_not_found")
    return record


ROUTES = (
    PacedRoute("/v1/chat/completions/{completion_id}", completion_by_id, methods=["GET", "POST", "DELETE"]),
    PacedRoute("/v1/chat/completions/{completion_id}/messages", completion_messages),
)
