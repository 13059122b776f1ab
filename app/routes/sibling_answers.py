"""Answers to the questions of other API processes of the same service, with the key of the client that they serve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app.conversations.store import StoredItem
from app.protocols.responses_stored import response_of
from app.routes import authenticate_request, completion_list, get_service
from app.routes.elsewhere import CHAINS, ITEMS
from app.routes.paced_route import PacedRoute
from app.routes.stored_context import chain, check_size


def _answer(path: str, find: Callable[[Request, str], Awaitable[Any]]) -> PacedRoute:
    """Return a route for other processes only. find: returns the answer for the owner of a key; None for 404."""

    async def answer(request: Request) -> Response:
        siblings = get_service(request).siblings
        found = None
        if siblings is not None and siblings.has_sent(request.scope):
            found = await find(request, authenticate_request(request).owner)
        if found is None:
            raise HTTPException(404)
        return Response(msgspec.msgpack.encode(found), media_type="application/msgpack")

    return PacedRoute(path, answer)


async def _chain(request: Request, owner: str) -> list[StoredItem] | None:
    """Return the items of a response and of those before it. Raises `ApiError` (400)."""
    service = get_service(request)
    items = await chain(service, request.path_params["response_id"], [(service.store, owner)])
    if items is None:
        return None
    check_size(service, items)
    return list(items)


async def _item(request: Request, owner: str) -> StoredItem | None:
    """Return an item of a response or conversation."""
    service, given = get_service(request), request.path_params["item_id"]
    await service.saves.settled(response_of(given))
    return await service.store.item(given, owner)


ROUTES = (
    _answer(completion_list.QUESTION, completion_list.answer_part),
    _answer(f"{CHAINS}/{{response_id}}", _chain),
    _answer(f"{ITEMS}/{{item_id}}", _item),
)
