"""Lists of stored records: pages by `limit`, `order` and `after`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from app.conversations.store import StoredItem
from app.errors import ApiError

MAX_LIMIT = 100
DEFAULT_LIMIT = 20


class Identified(Protocol):
    """Record with an id."""

    @property
    def id(self) -> str:
        """Return the id."""
        ...


Record = TypeVar("Record", bound=Identified)


def page(request: Request, items: Sequence[StoredItem], order: str) -> Response:
    """Return the part of a list of items that a request asks for; see `select`."""
    selected, has_more = select(request, items, order)
    return list_response(selected, has_more=has_more)


def select(request: Request, records: Sequence[Record], order: str) -> tuple[Sequence[Record], bool]:
    """Return the part of a list that a request asks for, and whether more follow. Raises `ApiError` (400).

    records: the oldest first. order: the default, asc or desc.
    """
    limit = _limit(request)
    order = request.query_params.get("order", order)
    if order not in ("asc", "desc"):
        raise ApiError(400, f"order must be asc or desc, got {order[:40]!r}", param="order", code="invalid_value")
    listed = records if order == "asc" else records[::-1]
    after = request.query_params.get("after")
    start = 0
    if after is not None:
        found = next((index for index, record in enumerate(listed) if record.id == after), None)
        if found is None:
            message = f"after must be the id of an entry of the list, got {after[:80]!r}"
            raise ApiError(400, message, param="after", code="invalid_value")
        start = found + 1
    return listed[start : start + limit], start + limit < len(listed)


def list_response(items: Sequence[StoredItem], *, has_more: bool) -> Response:
    """Return a list of items. has_more: whether more follow."""
    content = b'{"object":"list","data":[%s],"first_id":%s,"last_id":%s,"has_more":%s}' % (
        b",".join([item.data for item in items]),
        b'"%s"' % items[0].id.encode() if items else b"null",
        b'"%s"' % items[-1].id.encode() if items else b"null",
        b"true" if has_more else b"false",
    )
    return Response(content, media_type="application/json")


def _limit(request: Request) -> int:
    value = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not (value.isascii() and value.isdigit() and len(value) <= 3 and 1 <= int(value) <= MAX_LIMIT):
        message = f"limit must be between 1 and {MAX_LIMIT}, got {value[:40]!r}"
        raise ApiError(400, message, param="limit", code="invalid_value")
    return int(value)
