"""/v1/page/warm: which requests are still in the prefix cache, and what that saves the next message.

A request is known in the API process that has served it, which asks the others for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.admission.thread_queue import Caller
from app.generation.warm_requests import WarmRequest
from app.http.security import read_json_body
from app.http.siblings import SiblingAbsent
from app.protocols.page_warm import PageWarm, PageWarmRequest
from app.routes import authenticate_request, get_service, parse_stream_id
from app.routes.paced_route import PacedRoute

PATH = "/v1/page/warm"

_decoder = msgspec.json.Decoder(PageWarm)


async def page_warm(request: Request) -> Response:
    """POST /v1/page/warm: return the tokens of the client's own requests that are in the prefix cache, and the times to
    the first token of a next message.
    """
    tenant, service = authenticate_request(request), get_service(request)
    with service.bodies.memory(tenant.id) as memory:
        body = await read_json_body(request, service.settings, memory)
        asked = (await service.prompts.parse(PageWarmRequest, body, Caller(tenant.id))).requests
    found = {each: warm for each in asked if (warm := service.warm.find(parse_stream_id(each), tenant.owner))}
    if missing := [each for each in asked if each not in found]:
        found |= await _found_elsewhere(request, missing)
    return Response(msgspec.json.encode(PageWarm(found)), media_type="application/json")


async def _found_elsewhere(request: Request, missing: Sequence[str]) -> dict[str, WarmRequest]:
    """Return those of these requests that other API processes have served. One that cannot be asked is left out."""
    siblings = get_service(request).siblings
    found: dict[str, WarmRequest] = {}
    if siblings is None or siblings.has_sent(request.scope):
        return found
    for number in siblings.others:
        body = msgspec.json.encode({"requests": [each for each in missing if each not in found]})
        try:
            answer = await siblings.ask(number, request.scope, PATH, body=body)
        except SiblingAbsent:
            continue
        if answer is not None:
            found |= _decoder.decode(answer).requests
    return found


ROUTES = (PacedRoute(PATH, page_warm, methods=["POST"]),)
