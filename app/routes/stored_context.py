"""Stored context of a request to /v1/responses: the items that it continues or refers to, and the storing of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """Stored items of a request.

    history: those before its input. references: by indexes of the input. is_foreign: the history is that of a response
    in the store of another process.
    """

    history: Sequence[StoredItem]
    references: Mapping[int, StoredItem]
    is_foreign: bool


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
    previous_id = None if context.is_foreign else body.previous_response_id
    record = StoredResponse(
        id="",
        owner=owner,
        tenant=tenant.id,
        created=0.0,
        previous_id=previous_id,
        conversation_id=body.conversation_id,
        inherited=tuple(context.history) if context.is_foreign else (),
        input=stored,
    )
    history = context.history if previous_id is not None else ()
    return request.observed_by(ResponseObserver(store, service.saves, record, history))


async def complete_prompt(arrived: Arrived[Fields]) -> Fields:
    """Return a request with its stored items. Raises `ApiError`."""
    return (await _completed(arrived))[1]


async def _completed(arrived: Arrived[Fields]) -> tuple[_Context, Fields, tuple[StoredItem, ...]]:
    """Return the stored items of a request, the request with them, and the items of its input for the store."""
    service, body = arrived.service, arrived.body
    service.check_model(body.model)
    history, is_foreign = await _history(arrived)
    context = _Context(history, await _references(arrived), is_foreign)
    size = check_size(service, (*context.history, *context.references.values()))
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


def check_size(service: Service, items: Iterable[StoredItem]) -> int:
    """Return the bytes of the JSON of a request's stored items. Raises `ApiError` (400) if they are too many."""
    size = sum(len(item.data) for item in items)
    if size > service.settings.max_body:
        message = (
            f"the stored items of this request have {size:,} bytes; at most {service.settings.max_body:,} are allowed, "
            "as for a body; send a summary as a new conversation"
        )
        raise ApiError(400, message, param="input", code="invalid_value")
    return size


async def _history(arrived: Arrived[Fields]) -> tuple[Sequence[StoredItem], bool]:
    """Return the items before the input, and whether another process has them. Raises `ApiError` if none has."""
    service, body, owner = arrived.service, arrived.body, arrived.tenant.owner
    if (previous_id := body.previous_response_id) is not None:
        sources: list[tuple[ConversationStore, str]] = [(service.store, owner)]
        if arrived.connection is not None:
            sources.append((arrived.connection.store, arrived.connection.owner))
        if (items := await chain(service, previous_id, sources)) is not None:
            return items, False
        if arrived.elsewhere is not None and (items := await arrived.elsewhere.chain(previous_id)) is not None:
            return items, True
        message = f"Previous response with id {previous_id!r} not found."
        raise ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
    if body.conversation_id is None:
        return (), False
    await service.saves.settled(body.conversation_id)
    conversation = await service.store.conversation(body.conversation_id, owner)
    if conversation is None:
        if arrived.elsewhere is not None and await arrived.elsewhere.has_conversation(body.conversation_id):
            raise _foreign_conversation(body.conversation_id)
        raise unknown_conversation(body.conversation_id, "conversation")
    return conversation.items, False


async def chain(
    service: Service, previous_id: str, sources: Sequence[tuple[ConversationStore, str]]
) -> Sequence[StoredItem] | None:
    """Return the items of a response and of those before it; None if it is not stored. Raises `ApiError` (400) if it
    cannot be continued.

    sources: stores, each with the owner of the response.
    """
    param = "previous_response_id"
    await service.saves.settled(previous_id)
    for store, owner in sources:
        if (previous := await store.response(previous_id, owner)) is not None:
            break
    else:
        return None
    if not previous.has_ended:
        message = f"previous_response_id: response {previous_id!r} is in progress; wait until it has ended"
        raise ApiError(400, message, param=param, code="response_in_progress")
    if previous.conversation_id is not None:
        message = (
            f"previous_response_id: response {previous_id!r} belongs to the conversation {previous.conversation_id!r}; "
            "send conversation instead"
        )
        raise ApiError(400, message, param=param, code="invalid_value")
    return await store.history(previous)


async def _references(arrived: Arrived[Fields]) -> dict[int, StoredItem]:
    """Return the items that the input refers to. Raises `ApiError` (404) for an unknown one."""
    service, owner = arrived.service, arrived.tenant.owner
    found: dict[int, StoredItem] = {}
    for index, reference in enumerate(arrived.body.items):
        if isinstance(reference, ItemReference):
            await service.saves.settled(response_of(reference.id))
            item = await service.store.item(reference.id, owner)
            if item is None and arrived.elsewhere is not None:
                item = await arrived.elsewhere.item(reference.id)
            if item is None:
                message = f"Item with id {reference.id!r} not found."
                raise ApiError(404, message, param=f"input[{index}]", code="item_not_found")
            found[index] = item
    return found


def _foreign_conversation(conversation_id: str) -> ApiError:
    message = (
        f"conversation {conversation_id!r} is in another API process than this WebSocket; send its requests to "
        "POST /v1/responses"
    )
    return ApiError(400, message, param="conversation", code="conversation_elsewhere")


def unknown_conversation(conversation_id: str, param: str = "conversation_id") -> ApiError:
    """Return the error (404) for a conversation that does not exist or has another owner."""
    message = f"Conversation with id {conversation_id[:128]!r} not found."
    return ApiError(404, message, param=param, code="conversation_not_found")
