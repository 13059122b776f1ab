"""Models, tokenizer, health and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.client import Phase
from app.errors import error_body
from app.presence import done_for
from app.routes import json_response, service_of, tenant_of
from app.schemas.chat import turns
from app.schemas.tokens import DetokenizeRequest, TokenizeRequest
from app.security import read_json_body
from app.service import ENGINE_GONE, Service
from app.tenants import TIER_OF_CLASS, Tenant

COMING = {Phase.LOADING: "the model is loading", Phase.RESTARTING: "the engine died, and another one is loading"}


def _model(service: Service, tenant: Tenant) -> dict[str, Any]:
    return {
        "id": service.settings.model_name,
        "object": "model",
        "created": service.started,
        "owned_by": "carousel",
        "max_model_len": service.info.max_model_len,
        "service_tiers": [tier for service_class, tier in TIER_OF_CLASS.items() if tenant.may(service_class)],
    }


async def models(request: Request) -> Response:
    """GET /v1/models."""
    tenant = tenant_of(request)
    return JSONResponse({"object": "list", "data": [_model(service_of(request), tenant)]})


async def model(request: Request) -> Response:
    """GET /v1/models/{id}; ids may contain slashes."""
    if not request.path_params["model_id"]:  # /v1/models/
        return await models(request)
    tenant = tenant_of(request)
    service = service_of(request)
    service.check_model(request.path_params["model_id"])
    return JSONResponse(_model(service, tenant))


async def tokenize(request: Request) -> Response:
    """POST /tokenize: a text or a conversation to ids (vLLM's shape)."""
    tenant_of(request)
    service = service_of(request)
    asked = await service.parse(TokenizeRequest, await read_json_body(request, service.settings))
    service.check_model(asked.model)
    if asked.messages is not None:
        text, special = await service.render_chat(turns(asked.messages)), False
    else:
        text, special = asked.prompt or "", asked.add_special_tokens is not False
    ids = await done_for(request.receive, service.tokenize(text, add_special_tokens=special))
    return await json_response(
        {"count": len(ids), "max_model_len": service.info.max_model_len, "tokens": ids}, len(ids)
    )


async def detokenize(request: Request) -> Response:
    """POST /detokenize: ids to text."""
    tenant_of(request)
    service = service_of(request)
    asked = await service.parse(DetokenizeRequest, await read_json_body(request, service.settings))
    service.check_model(asked.model)
    text = await done_for(request.receive, service.detokenize(asked.tokens))
    return await json_response({"prompt": text}, len(asked.tokens))


async def health(request: Request) -> Response:
    """GET /health: 200 when requests are served; else 503 with how far the start has come. While an engine that died
    is replaced requests are taken, but wait: who has other servers may go there."""
    service = service_of(request)
    client = service.client
    if service.draining:
        return JSONResponse(error_body(503, "the server is stopping", code="server_shutdown"), status_code=503)
    if client.phase is Phase.READY:
        return JSONResponse({"status": "ready"})
    message = COMING.get(client.phase, ENGINE_GONE)
    body = error_body(503, message, code="engine_unavailable")
    if client.phase in COMING:
        loading = client.loading
        body["loading"] = {"what": loading.what, "done": loading.done, "total": loading.total}
    return JSONResponse(body, status_code=503, headers={"Retry-After": "2"})


async def metrics(request: Request) -> Response:
    """GET /metrics, for Prometheus."""
    service = service_of(request)
    await asyncio.to_thread(service.energy.read)
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)
