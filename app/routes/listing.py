"""Lists of stored records: pages by `limit`, `order` and `after`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from starlette.requests import Request
from starlette.responses import Response

from app.conversations.store import Page, StoredItem, Window
from app.errors import ApiError

MAX_LIMIT = 100
DEFAULT_LIMIT = 20


class WindowFields(TypedDict):
    """Fields of `Window`."""

    limit: int
    is_ascending: bool
    after: str | None


def page(request: Request, items: Sequence[StoredItem], order: str) -> Response:
    """Return the part of a list of items that a request asks for, the oldest first. order: the default, asc or desc.
    Raises `ApiError` (400).
    """
    window = Window(**parameters(request, order))
    found = window.select(items)
    if found is None:
        raise unknown_entry(window.after or "")
    return list_response(found)


def parameters(request: Request, order: str) -> WindowFields:
    """Return the fields of the window that a request asks for. order: the default. Raises `ApiError` (400)."""
    limit = number(request, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    order = request.query_params.get("order", order)
    if order not in ("asc", "desc"):
        raise ApiError(400, f"order must be asc or desc, got {order[:40]!r}", param="order", code="invalid_value")
    return {"limit": limit, "is_ascending": order == "asc", "after": request.query_params.get("after")}


def unknown_entry(given: str) -> ApiError:
    """Return the error (400) for an `after` that names no entry."""
    message = f"after must be the id of an entry of the list, got {given[:80]!r}"
    return ApiError(400, message, param="after", code="invalid_value")


def list_response(found: Page[StoredItem]) -> Response:
    """Return part of a list of items."""
    items = found.records
    content = b'{"object":"list","data":[%s],"first_id":%s,"last_id":%s,"has_more":%s}' % (
        b",".join([item.data for item in items]),
        b'"%s"' % items[0].id.encode() if items else b"null",
        b'"%s"' % items[-1].id.encode() if items else b"null",
        b"true" if found.has_more else b"false",
    )
    return Response(content, media_type="application/json")


def number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """Return a number of the query. Raises `ApiError` (400) if it is not from `least` to `most`."""
    value = request.query_params.get(name, str(default))
    if not (value.isascii() and value.isdigit() and len(value) <= len(str(most)) and least <= int(value) <= most):
        message = f"{name} must be between {least} and {most}, got {value[:40]!r}"
        raise ApiError(400, message, param=name, code="invalid_value")
    return int(value)
