"""Answers to the questions of other API processes of the same service, with the key of the client that they serve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app.routes import authenticate_request, completion_list, get_service
from app.routes.paced_route import PacedRoute


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


ROUTES = (_answer(completion_list.QUESTION, completion_list.answer_part),)
