"""Stored context of a request to /v1/responses: the items that it continues or refers to, and the storing of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from app.conversations.store import ConversationStore, StoredItem, StoredResponse
from app.errors import ApiError
from app.http.json_body import MAX_INLINE_BYTES
from app.protocols.responses import PromptFields, ResponsesRequest
from app.protocols.responses_input import ItemReference
from app.protocols.responses_stored import ResponseObserver, new_items, read_items, response_of
from app.routes.text import Arrived
from app.service import Service

Fields = TypeVar("Fields", bound=PromptFields)


class _Context(NamedTuple):
    """Stored items of a request. history: those before its input. references: by indexes of the input."""

    history: Sequence[StoredItem]
    references: Mapping[int, StoredItem]

    @property
    def size(self) -> int:
        """Return the bytes of their JSON."""
        return sum(len(item.data) for items in (self.history, self.references.values()) for item in items)


async def complete_response(arrived: Arrived[ResponsesRequest]) -> ResponsesRequest:
    """Return a request with its stored items, and with an observer that stores the response unless it is unwanted.
    Raises `ApiError`.
    """
    service, tenant, body = arrived.service, arrived.tenant, arrived.body
    context, request, stored = await _completed(arrived)
    store, owner = service.store, tenant.owner
    if not body.is_stored:
        if arrived.connection is None:
            return request
        store, owner = arrived.connection.store, arrived.connection.owner
    record = StoredResponse(
        id="",
        owner=owner,
        tenant=tenant.id,
        created=0.0,
        previous_id=body.previous_response_id,
        conversation_id=body.conversation_id,
        input=stored,
    )
    history = context.history if body.previous_response_id is not None else ()
    return request.observed_by(ResponseObserver(store, service.saves, record, history))


async def complete_prompt(arrived: Arrived[Fields]) -> Fields:
    """Return a request with its stored items. Raises `ApiError`."""
    return (await _completed(arrived))[1]


async def _completed(arrived: Arrived[Fields]) -> tuple[_Context, Fields, tuple[StoredItem, ...]]:
    """Return the stored items of a request, the request with them, and the items of its input for the store."""
    service, body = arrived.service, arrived.body
    service.check_model(body.model)
    history = await _history(arrived)
    context = _Context(history, await _references(service, body, arrived.tenant.owner))
    size = context.size
    if size > service.settings.max_body:
        message = (
            f"the stored items of this request have {size:,} bytes; at most {service.settings.max_body:,} are allowed, "
            "as for a body; send a summary as a new conversation"
        )
        raise ApiError(400, message, param="input", code="invalid_value")
    arrived.memory.extend(size)

    def work() -> tuple[Fields, tuple[StoredItem, ...]]:
        stored = new_items(body.items, context.references)
        if not context.history and not context.references:
            return body, stored
        items = list(body.items)
        for index, item in zip(context.references, read_items(list(context.references.values())), strict=True):
            items[index] = item
        return body.completed(read_items(context.history), items), stored

    total = size + arrived.size
    if total <= MAX_INLINE_BYTES:
        return context, *work()
    return context, *await service.prompts.body_queue.run(work, arrived.caller, size=total)


async def _history(arrived: Arrived[Fields]) -> Sequence[StoredItem]:
    """Return the items before the input. Raises `ApiError` if they are not stored."""
    service, body, owner = arrived.service, arrived.body, arrived.tenant.owner
    if body.previous_response_id is not None:
        sources: list[tuple[ConversationStore, str]] = [(service.store, owner)]
        if arrived.connection is not None:
            sources.append((arrived.connection.store, arrived.connection.owner))
        return await _chain(service, body.previous_response_id, sources)
    if body.conversation_id is None:
        return ()
    await service.saves.settled(body.conversation_id)
    conversation = await service.store.conversation(body.conversation_id, owner)
    if conversation is None:
        raise unknown_conversation(body.conversation_id, "conversation")
    return conversation.items


async def _chain(
    service: Service, previous_id: str, sources: Sequence[tuple[ConversationStore, str]]
) -> Sequence[StoredItem]:
    """Return the items of a response and of those before it. sources: stores, each with the owner of the response."""
    param = "previous_response_id"
    await service.saves.settled(previous_id)
    for store, owner in sources:
        if (previous := await store.response(previous_id, owner)) is not None:
            break
    else:
        raise _unknown_previous(previous_id)
    if not previous.has_ended:
        message = f"previous_response_id: response {previous_id!r} is in progress; wait until it has ended"
        raise ApiError(400, message, param=param, code="response_in_progress")
    if previous.conversation_id is not None:
        message = (
            f"previous_response_id: response {previous_id!r} belongs to the conversation {previous.conversation_id!r}; "
            "send conversation instead"
        )
        raise ApiError(400, message, param=param, code="invalid_value")
    items = await store.history(previous)
    if items is None:
        raise _unknown_previous(previous_id)
    return items


async def _references(service: Service, body: PromptFields, owner: str) -> dict[int, StoredItem]:
    """Return the items that the input refers to. Raises `ApiError` (404) for an unknown one."""
    found: dict[int, StoredItem] = {}
    for index, reference in enumerate(body.items):
        if isinstance(reference, ItemReference):
            await service.saves.settled(response_of(reference.id))
            item = await service.store.item(reference.id, owner)
            if item is None:
                message = f"Item with id {reference.id!r} not found."
                raise ApiError(404, message, param=f"input[{index}]", code="item_not_found")
            found[index] = item
    return found


def _unknown_previous(previous_id: str) -> ApiError:
    message = f"Previous response with id {previous_id!r} not found."
    return ApiError(400, message, param="previous_response_id", code="previous_response_not_found")


def unknown_conversation(conversation_id: str, param: str = "conversation_id") -> ApiError:
    """Return the error (404) for a conversation that does not exist or has another owner."""
    message = f"Conversation with id {conversation_id[:128]!r} not found."
    return ApiError(404, message, param=param, code="conversation_not_found")
