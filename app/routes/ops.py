"""Routes for models, tokenizer, health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.admission.tenants import TIER_OF_CLASS, Tenant
from app.admission.thread_queue import Caller
from app.engine_client.client import EngineClient
from app.engine_client.member import EngineState
from app.errors import ApiError, error_body
from app.generation.request import ChatPrompt, effective_defaults
from app.http.disconnect import run_unless_disconnected
from app.http.security import authenticate_metrics, authenticate_operator, read_json_body
from app.observe.merged_metrics import merge_metrics
from app.protocols.messages import turns
from app.protocols.tokens import DetokenizeRequest, TokenizeRequest
from app.routes import authenticate_request, get_service, json_response
from app.service import ENGINE_UNAVAILABLE, Service

if TYPE_CHECKING:
    from app.store.state_file import StateFile

STALLED_TEXT = "the engine makes no progress; it is replaced if it does not recover"
LOADING_TEXTS = {
    EngineState.LOADING: "the model is loading",
    EngineState.RESTARTING: "the engine died, and another one is loading",
    EngineState.RETRYING: "several engines in a row failed to start; another one will be started",
}


def _model(service: Service, tenant: Tenant) -> dict[str, Any]:
    info = service.info
    return {
        "id": service.settings.model_name,
        "object": "model",
        "created": service.started,
        "owned_by": "carousel",
        "max_model_len": info.max_model_len,
        "format": info.format,
        "family": info.family,
        "parameters": info.parameters,
        "quantization": info.storage,
        "service_tiers": [tier for service_class, tier in TIER_OF_CLASS.items() if tenant.may(service_class)],
        "capabilities": {
            "chat": service.text.has_chat_template,
            "tools": service.text.has_chat_template and service.text.calls_tools,
            "reasoning": service.text.writes_reasoning,
            "structured_output": bool(service.text.eos_token_ids),
        },
        "generation_defaults": effective_defaults(service.text.sampling_defaults),
    }


def _anthropic_model(service: Service) -> dict[str, Any]:
    """Return the model as Anthropic's clients read it."""
    created = datetime.fromtimestamp(service.started, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    name, context = service.settings.model_name, service.info.max_model_len
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created,
        "max_input_tokens": context,
        "max_tokens": context,
    }


async def models(request: Request) -> Response:
    """GET /v1/models, in the shape of the client's protocol."""
    tenant, service = authenticate_request(request), get_service(request)
    if "anthropic-version" in request.headers:
        listed = _anthropic_model(service)
        ends = {"first_id": listed["id"], "last_id": listed["id"]}
        return JSONResponse({"data": [listed], "has_more": False, **ends})
    return JSONResponse({"object": "list", "data": [_model(service, tenant)]})


async def model(request: Request) -> Response:
    """GET /v1/models/{id}; ids may contain slashes."""
    if not request.path_params["model_id"]:  # /v1/models/
        return await models(request)
    tenant = authenticate_request(request)
    service = get_service(request)
    service.check_model(request.path_params["model_id"])
    is_anthropic = "anthropic-version" in request.headers
    return JSONResponse(_anthropic_model(service) if is_anthropic else _model(service, tenant))


async def tokenize(request: Request) -> Response:
    """POST /tokenize: return the token ids of a text or a conversation (vLLM's shape)."""
    caller, service = Caller(authenticate_request(request).id), get_service(request)
    with service.bodies.memory(caller.tenant) as memory:
        body = await read_json_body(request, service.settings, memory)
        parsed = await service.prompts.parse(TokenizeRequest, body, caller)
        service.check_model(parsed.model)
        if parsed.messages is not None:
            text, special = await service.prompts.render(ChatPrompt(turns=turns(parsed.messages)), caller), False
        else:
            text, special = parsed.prompt or "", parsed.add_special_tokens is not False
        work = service.prompts.tokenize(text, caller, add_special_tokens=special)
        ids = await run_unless_disconnected(request.receive, work)
    return await json_response(
        {"count": len(ids), "max_model_len": service.info.max_model_len, "tokens": ids}, len(ids)
    )


async def detokenize(request: Request) -> Response:
    """POST /detokenize: return the text of token ids."""
    caller, service = Caller(authenticate_request(request).id), get_service(request)
    with service.bodies.memory(caller.tenant) as memory:
        body = await read_json_body(request, service.settings, memory)
        parsed = await service.prompts.parse(DetokenizeRequest, body, caller)
        service.check_model(parsed.model)
        text = await run_unless_disconnected(request.receive, service.prompts.detokenize(parsed.tokens, caller))
    return await json_response({"prompt": text}, len(parsed.tokens))


async def health(request: Request) -> Response:
    """GET /health and /readyz: return 200 if requests are served, else 503 with the progress of the start. While a dead
    engine is replaced, requests are accepted but wait, so a load balancer may prefer other servers.
    """
    service = get_service(request)
    client = service.client
    if service.draining:
        body = error_body(503, "the server is stopping", code="server_shutdown")
        return JSONResponse(body, status_code=503, headers={"Retry-After": "5"})
    if client.state is EngineState.READY and not client.is_stalled and not service.grammars.is_starting:
        try:
            service.check_restored()
        except ApiError as error:
            return JSONResponse(error.body | _engines(client), error.status, error.headers)
        return JSONResponse({"status": "ready"} | _engines(client) | _store_state(service.state_file))
    message = STALLED_TEXT if client.is_stalled else LOADING_TEXTS.get(client.state, ENGINE_UNAVAILABLE)
    body = error_body(503, message, code="engine_unavailable")
    if client.state in LOADING_TEXTS:
        loading = client.loading
        body["loading"] = {"what": loading.stage, "done": loading.done, "total": loading.total}
    return JSONResponse(body | _engines(client), status_code=503, headers={"Retry-After": "2"})


def _engines(client: EngineClient) -> dict[str, Any]:
    """Return the state of each engine, if there are several."""
    if client.is_single:
        return {}
    states = {each.index: "stalled" if each.is_stalled else each.phase.value for each in client.members}
    return {"engines": [{"engine": index, "state": state} for index, state in states.items()]}


def _store_state(state_file: StateFile | None) -> dict[str, str]:
    """Return the state of the store, if it is not the usual one."""
    if state_file is not None and state_file.is_waiting:
        return {"store": "waiting"}
    return {"store": "degraded"} if state_file is not None and state_file.writer.is_failing else {}


async def livez(request: Request) -> Response:
    """GET /livez: return 200 while the event loop runs, even while the model loads and during a drain; 503 if the
    process is about to exit because no engine can be started.
    """
    if get_service(request).client.state in (EngineState.FAILED, EngineState.STOPPED):
        return JSONResponse(error_body(503, ENGINE_UNAVAILABLE, code="engine_unavailable"), status_code=503)
    return JSONResponse({"status": "alive"})


async def drain(request: Request) -> Response:
    """POST /drain: refuse new requests, let running answers finish, then end the process, as SIGTERM does."""
    service = get_service(request)
    authenticate_operator(request, service.settings)
    service.begin_drain()
    return JSONResponse({"status": "draining", "in_flight": len(service.registry.live())}, status_code=202)


async def metrics(request: Request) -> Response:
    """GET /metrics: return metrics for Prometheus."""
    service = get_service(request)
    authenticate_metrics(request, service.settings)
    await asyncio.to_thread(service.energy.read)
    own, siblings = service.metrics.text(), service.siblings
    if siblings is None or siblings.has_sent(request.scope):
        return Response(own, media_type=CONTENT_TYPE_LATEST)
    texts = {siblings.index: own.decode()}
    for number in siblings.others:
        with contextlib.suppress(OSError):  # it is being started again
            forwarded = await siblings.forward(number, request.scope)
            texts[number] = (await forwarded.read_body()).decode()
    return Response(merge_metrics(texts), media_type=CONTENT_TYPE_LATEST)
