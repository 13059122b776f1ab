"""Routes for models, tokenizer, health and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.admission.tenants import TIER_OF_CLASS, Tenant
from app.engine_client.client import Phase
from app.errors import error_body
from app.http.disconnect import done_for
from app.http.security import authenticate_metrics, authenticate_operator, read_json_body
from app.protocols.chat import turns
from app.protocols.tokens import DetokenizeRequest, TokenizeRequest
from app.routes import json_response, service_of, tenant_of
from app.service import ENGINE_GONE, Service

STALLED_TEXT = "the engine makes no progress; it is replaced if it does not recover"
LOADING_TEXTS = {
    Phase.LOADING: "the model is loading",
    Phase.RESTARTING: "the engine died, and another one is loading",
    Phase.RETRYING: "several engines in a row failed to start; another one will be started",
}


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
    """POST /tokenize: return the token ids of a text or a conversation (vLLM's shape)."""
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
    """POST /detokenize: return the text of token ids."""
    tenant_of(request)
    service = service_of(request)
    asked = await service.parse(DetokenizeRequest, await read_json_body(request, service.settings))
    service.check_model(asked.model)
    text = await done_for(request.receive, service.detokenize(asked.tokens))
    return await json_response({"prompt": text}, len(asked.tokens))


async def health(request: Request) -> Response:
    """GET /health and /readyz: return 200 if requests are served, else 503 with the progress of the start. While a dead
    engine is replaced, requests are accepted but wait, so a load balancer may prefer other servers.
    """
    service = service_of(request)
    client = service.client
    if service.draining:
        body = error_body(503, "the server is stopping", code="server_shutdown")
        return JSONResponse(body, status_code=503, headers={"Retry-After": "5"})
    if client.phase is Phase.READY and not client.is_stalled:
        return JSONResponse({"status": "ready"})
    message = STALLED_TEXT if client.is_stalled else LOADING_TEXTS.get(client.phase, ENGINE_GONE)
    body = error_body(503, message, code="engine_unavailable")
    if client.phase in LOADING_TEXTS:
        loading = client.loading
        body["loading"] = {"what": loading.what, "done": loading.done, "total": loading.total}
    return JSONResponse(body, status_code=503, headers={"Retry-After": "2"})


async def alive(request: Request) -> Response:
    """GET /livez: return 200 while the event loop runs, even while the model loads and during a drain; 503 if the
    process is about to exit because no engine can be started.
    """
    if service_of(request).client.phase in (Phase.FAILED, Phase.STOPPED):
        return JSONResponse(error_body(503, ENGINE_GONE, code="engine_unavailable"), status_code=503)
    return JSONResponse({"status": "alive"})


async def drain(request: Request) -> Response:
    """POST /drain: refuse new requests, let running answers finish, then end the process, as SIGTERM does."""
    service = service_of(request)
    authenticate_operator(request, service.settings)
    service.draining = True
    return JSONResponse({"status": "draining", "in_flight": len(service.registry.live())}, status_code=202)


async def metrics(request: Request) -> Response:
    """GET /metrics: return metrics for Prometheus."""
    service = service_of(request)
    authenticate_metrics(request, service.settings)
    await asyncio.to_thread(service.energy.read)
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)
