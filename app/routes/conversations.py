"""/v1/conversations: create, read, change and delete conversations and their items."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.admission.thread_queue import Caller
from app.conversations.store import Page, StoredConversation, StoredItem
from app.errors import ApiError
from app.http.json_body import MAX_INLINE_BYTES
from app.http.security import read_json_body
from app.protocols.conversations import (
    ConversationRequest,
    ItemsRequest,
    MetadataRequest,
    check_room,
    conversation_body,
)
from app.protocols.schema import Schema
from app.routes import authenticate_request, get_service
from app.routes.listing import list_response, page
from app.routes.paced_route import PacedRoute
from app.routes.stored_context import unknown_conversation

Result = TypeVar("Result")


async def create_conversation(request: Request) -> Response:
    """POST /v1/conversations: create a conversation, with items if there are some."""
    tenant, service = authenticate_request(request), get_service(request)
    parsed, items = await read_body(request, ConversationRequest, ConversationRequest.stored_items)
    record = StoredConversation(
        id=f"conv_{secrets.token_hex(24)}",
        owner=tenant.owner,
        tenant=tenant.id,
        created=time.time(),
        metadata=msgspec.json.encode(parsed.metadata or {}),
        items=items,
    )
    service.store.add_conversation(record)
    return _conversation(record)


async def conversation_by_id(request: Request) -> Response:
    """GET /v1/conversations/{id}: return a conversation. POST: replace its metadata. DELETE: delete it."""
    record = await _find(request)
    store = get_service(request).store
    if request.method == "DELETE":
        await store.delete_conversation(record.id, record.owner)
        return JSONResponse({"id": record.id, "object": "conversation.deleted", "deleted": True})
    if request.method == "POST":
        parsed, _ = await read_body(request, MetadataRequest, lambda _: None)
        metadata = msgspec.json.encode(parsed.metadata or {})
        store.update_conversation(record.id, metadata)
        return _conversation(msgspec.structs.replace(record, metadata=metadata))
    return _conversation(record)


async def conversation_items(request: Request) -> Response:
    """GET /v1/conversations/{id}/items: list the items. POST: append items and return them."""
    record = await _find(request)
    if request.method == "GET":
        return page(request, record.items, "desc")
    _, items = await read_body(request, ItemsRequest, ItemsRequest.stored_items)
    record = await _find(request)  # it may have changed while the body arrived
    check_room(record, len(items))
    get_service(request).store.extend_conversation(record.id, items)
    return list_response(Page(items, has_more=False))


async def conversation_item(request: Request) -> Response:
    """GET /v1/conversations/{id}/items/{item_id}: return an item. DELETE: delete it and return the conversation."""
    record = await _find(request)
    item = _item(record, request.path_params["item_id"])
    if request.method == "DELETE":
        get_service(request).store.remove_conversation_item(record.id, item.id)
        return _conversation(record)
    return Response(item.data, media_type="application/json")


async def read_body(request: Request, schema: type[Schema], make: Callable[[Schema], Result]) -> tuple[Schema, Result]:
    """Return the body of a request that needs no model, and what `make` makes of it. Both are made in a thread if the
    body is large. Raises `ApiError`.
    """
    service, caller = get_service(request), Caller(authenticate_request(request).id)
    with service.bodies.memory(caller.tenant) as memory:
        body = await read_json_body(request, service.settings, memory)
        parsed = await service.prompts.parse(schema, body, caller)
        if len(body) <= MAX_INLINE_BYTES:
            return parsed, make(parsed)
        return parsed, await service.prompts.body_queue.run(lambda: make(parsed), caller, size=len(body))


async def _find(request: Request) -> StoredConversation:
    """Return the client's own conversation. Raises `ApiError` (404) for an unknown one."""
    owner, given = authenticate_request(request).owner, request.path_params["conversation_id"]
    service = get_service(request)
    await service.saves.settled(given)
    record = await service.store.conversation(given, owner)
    if record is None:
        raise unknown_conversation(given)
    return record


def _item(record: StoredConversation, item_id: str) -> StoredItem:
    found = next((item for item in record.items if item.id == item_id), None)
    if found is None:
        message = f"Item with id {item_id[:128]!r} not found in conversation {record.id!r}."
        raise ApiError(404, message, param="item_id", code="item_not_found")
    return found


def _conversation(record: StoredConversation) -> Response:
    return Response(conversation_body(record), media_type="application/json")


ROUTES = (
    PacedRoute("/v1/conversations", create_conversation, methods=["POST"]),
    PacedRoute("/v1/conversations/{conversation_id}", conversation_by_id, methods=["GET", "POST", "DELETE"]),
    PacedRoute("/v1/conversations/{conversation_id}/items", conversation_items, methods=["GET", "POST"]),
    PacedRoute("/v1/conversations/{conversation_id}/items/{item_id}", conversation_item, methods=["GET", "DELETE"]),
)
