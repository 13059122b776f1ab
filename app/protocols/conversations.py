"""`/v1/conversations`: requests, and conversations as clients see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from pydantic import Field, ValidationError

from app.conversations.store import StoredConversation, StoredItem
from app.errors import ApiError
from app.protocols.responses_input import MAX_ITEMS, InputItem, ItemReference
from app.protocols.responses_stored import new_items
from app.protocols.schema import Metadata, Strict, refusal

Items = Annotated[list[InputItem], Field(fail_fast=True, max_length=MAX_ITEMS)]


class _Bracketed(Strict):
    """Schema whose errors have indexes in brackets, as those of `/v1/responses`."""

    @classmethod
    def api_error(cls, error: ValidationError) -> ApiError:
        """Return the first problem of a validation as an error for the client."""
        return refusal(error, has_brackets=True)


class ConversationRequest(_Bracketed):
    """Body of `POST /v1/conversations`."""

    items: Items | None = None
    metadata: Metadata | None = None

    def check(self) -> None:
        """Check the items. Raises `ApiError`."""
        _check_items(self.items or [])

    def stored_items(self) -> tuple[StoredItem, ...]:
        """Return the items for the store."""
        return new_items(self.items or [], {})


class MetadataRequest(Strict):
    """Body of a request that replaces metadata."""

    metadata: Metadata | None


class ItemsRequest(_Bracketed):
    """Body of `POST /v1/conversations/{id}/items`."""

    items: Items = Field(min_length=1)

    def check(self) -> None:
        """Check the items. Raises `ApiError`."""
        _check_items(self.items)

    def stored_items(self) -> tuple[StoredItem, ...]:
        """Return the items for the store."""
        return new_items(self.items, {})


def _check_items(items: Sequence[InputItem]) -> None:
    """Raise `ApiError` (400) for references, which a conversation cannot have."""
    for index, item in enumerate(items):
        if isinstance(item, ItemReference):
            where = f"items[{index}]"
            message = f"unsupported parameter: {where}, item_reference is only supported in input; send the item itself"
            raise ApiError(400, message, param=where, code="unsupported_parameter")


def check_room(record: StoredConversation, added: int) -> None:
    """Raise `ApiError` (400) if a conversation cannot have so many more items."""
    total = len(record.items) + added
    if total > MAX_ITEMS:
        message = f"items: the conversation would have {total} items; at most {MAX_ITEMS} are allowed; delete some"
        raise ApiError(400, message, param="items", code="conversation_full")


def conversation_body(record: StoredConversation) -> bytes:
    """Return a conversation as clients see it."""
    fields = {"id": record.id, "object": "conversation", "created_at": int(record.created)}
    return msgspec.json.encode({**fields, "metadata": msgspec.Raw(record.metadata)})
