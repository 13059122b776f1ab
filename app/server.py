"""create_app: routes, middleware and lifespan of the server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route, Router, WebSocketRoute
from starlette.types import Receive, Scope, Send

from app.admission.addresses import client_network
from app.admission.connection_limits import ConnectionLimits
from app.admission.queues import Admission
from app.adoption import Adopter
from app.engine_client.client import EngineClient
from app.errors import ApiError, KeyRefused
from app.generation.registry import StreamRegistry
from app.http.assets import Assets
from app.http.root_path import RootPathMiddleware
from app.http.security import HostMiddleware, cross_origin, machine_names
from app.http.sibling_middleware import SiblingMiddleware
from app.http.siblings import Siblings
from app.observe.collectors import (
    AdmissionCollector,
    BodyCollector,
    ConnectionCollector,
    EnergyCollector,
    IdempotencyCollector,
    KeptSessionCollector,
    LogCollector,
    MeteringCollector,
    PageRowsCollector,
    RefusedKeysCollector,
    RequestPaceCollector,
    SharedUseCollector,
    SiblingCollector,
    StoreCollector,
    StoredRecordsCollector,
    WarmRequestsCollector,
)
from app.observe.energy import Energy
from app.observe.loop_lag import LoopLag
from app.observe.metrics import Metrics
from app.observe.replicas_wanted import ReplicasWantedCollector
from app.observe.request_log import REQUEST_ID, RequestLog
from app.observe.tool_calls import ToolCallMetrics
from app.protocols.wire_formats import wire_format
from app.routes import (
    anthropic,
    api_docs,
    chat_completions,
    conversations,
    live,
    ollama,
    openai_responses,
    ops,
    page_rows,
    page_tools,
    page_warm,
    pages,
    parse_stream_id,
    realtime,
    requests,
    responses_socket,
    sibling_answers,
    streams,
)
from app.routes import text as text_routes
from app.routes.paced_route import PacedRoute
from app.service import Service
from app.settings import Settings, SettingsError
from app.text.text_model import TextModel
from engine.log_queue import LogWriter

if TYPE_CHECKING:
    from app.mcp.servers import ToolServers
    from app.observe.metering import Metering
    from app.store.state_file import Found, StateFile

log = logging.getLogger("carousel.server")

# Paths at which text is generated, for clients with a wrong one.
GENERATING_PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions", "/v1/realtime")


def create_service(
    settings: Settings, client: EngineClient, text: TextModel, state_file: StateFile | None = None
) -> Service:
    """Return the parts that routes share, also used without HTTP by `app.llm`. Raises `SettingsError`."""
    service = Service(
        settings=settings,
        client=client,
        text=text,
        registry=StreamRegistry(ttl=settings.resume_ttl),
        metrics=Metrics(client, settings),
        admission=Admission(
            settings.max_queue,
            settings.max_queue_tokens,
            time.monotonic,
            settings.max_queue_share,
            settings.max_queue_wait,
        ),
        energy=Energy(),
        metering=_metering(settings),
        state_file=state_file,
        started=int(time.time()),  # wall clock, because it is shown to clients
    )
    if state_file is not None:
        service.store = state_file.conversations
    return service


def create_app(
    settings: Settings,
    client: EngineClient,
    text: TextModel,
    logs: LogWriter | None = None,
    connections: ConnectionLimits | None = None,
    state_file: StateFile | None = None,
    siblings: Siblings | None = None,
) -> Starlette:
    """Return the ASGI application, which starts and stops `client`. Raises `SettingsError` if a file cannot be written.

    logs, connections: their counters appear in /metrics. state_file: keeps answers over a restart. siblings: API
    processes that share the port.
    """
    service = create_service(settings, client, text, state_file)
    service.adopt, service.siblings = Adopter(service).adopt, siblings
    found = _open(service)
    _collect(service, logs, connections or ConnectionLimits())
    tool_servers = _tool_servers(service)
    lag = LoopLag(service.metrics.registry, settings.model_name)
    replicas_wanted = ReplicasWantedCollector(client, service.metrics.registry, settings.model_name)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if service.metering is not None:
            service.metering.start()
        await client.start()
        recovering = asyncio.create_task(_recover(service, found))
        lag.start()
        replicas_wanted.start()
        if service.before_accepting is not None:
            await service.before_accepting()
        try:
            yield
        finally:
            lag.stop()
            replicas_wanted.stop()
            recovering.cancel()
            await client.stop()
            await service.grammars.close()
            if tool_servers is not None:
                await tool_servers.close()
            if state_file is not None:
                state_file.flush()
            await asyncio.to_thread(service.close)

    app = Starlette(
        routes=[  # matched in order: the most frequent first
            Route("/v1/chat/completions", chat_completions.chat_completions, methods=["GET", "POST"]),
            Route("/v1/completions", text_routes.text_completions, methods=["POST"]),
            Route("/v1/messages", anthropic.create_message, methods=["POST"]),
            PacedRoute("/v1/messages/count_tokens", anthropic.count_tokens, methods=["POST"]),
            Route("/v1/responses", openai_responses.create_response, methods=["POST"]),
            WebSocketRoute("/v1/responses", responses_socket.responses_socket),
            PacedRoute("/v1/responses/input_tokens", openai_responses.count_input_tokens, methods=["POST"]),
            PacedRoute("/v1/responses/{response_id}", openai_responses.response_by_id, methods=["GET", "DELETE"]),
            PacedRoute("/v1/responses/{response_id}/cancel", openai_responses.cancel_response, methods=["POST"]),
            PacedRoute("/v1/responses/{response_id}/input_items", openai_responses.input_items),
            *conversations.ROUTES,
            *page_rows.ROUTES,
            *page_warm.ROUTES,
            *page_tools.ROUTES,
            *chat_completions.ROUTES,
            *ollama.ROUTES,
            Route("/", pages.chat_page),
            Route("/engine", pages.engine_page),
            Route("/preview", pages.preview),
            Route("/preview/mermaid", pages.mermaid_preview),
            Route("/manifest.webmanifest", pages.manifest),
            Route("/service_worker.js", pages.service_worker),
            Route("/docs", api_docs.docs_page),
            Route("/openapi.json", api_docs.openapi),
            Route("/favicon.ico", pages.icon),
            Mount("/static", Assets()),
            Route("/v1/streams/{stream_id}", streams.get_stream, methods=["GET", "DELETE"]),
            PacedRoute("/v1/requests/{request_id}", requests.request_by_id, methods=["GET", "POST"]),
            PacedRoute("/v1/models", ops.models),
            PacedRoute("/v1/models/{model_id:path}", ops.model),
            Route("/v1/engine/events", live.engine_events),
            WebSocketRoute("/v1/realtime", realtime.realtime),
            Route("/v1/realtime", realtime.upgrade_required),
            PacedRoute("/tokenize", ops.tokenize, methods=["POST"]),
            PacedRoute("/detokenize", ops.detokenize, methods=["POST"]),
            Route("/health", ops.health),
            Route("/readyz", ops.health),
            Route("/livez", ops.livez),
            Route("/drain", ops.drain, methods=["POST"]),
            Route("/metrics", ops.metrics),
            *(sibling_answers.ROUTES if siblings is not None else ()),
        ],
        middleware=[
            Middleware(RequestLog, registry=service.registry),
            Middleware(HostMiddleware, settings=settings, own_names=machine_names(settings.host)),
            *cross_origin(settings),
            *([Middleware(RootPathMiddleware, root_path=settings.root_path)] if settings.root_path else []),
            *([Middleware(SiblingMiddleware, siblings=siblings)] if siblings is not None else []),
        ],
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            ClientDisconnect: _client_disconnected,
            Exception: _internal_error,
        },
        lifespan=lifespan,
    )
    app.state.service = service
    app.state.tool_servers = tool_servers
    app.router.redirect_slashes = False  # a redirect would make clients send their body twice
    app.router.default = _Unrouted(app.router)
    return app


def _open(service: Service) -> Found | None:
    """Read the state of an earlier process, whose answers and sessions are restored when the model is loaded."""
    if (state_file := service.state_file) is None:
        return None
    registry = service.registry
    registry.epoch = state_file.epoch
    registry.on_evict = state_file.journal.forget
    state_file.rates.follow(service.limits.used)
    state_file.refused_keys.follow(service.refused_keys.attempts)
    service.limits.on_change = state_file.rates.changed
    service.refused_keys.on_change = state_file.refused_keys.changed
    _ = service.text.digest  # computed before requests arrive, as it takes some time
    service.sessions.is_stored = True
    registry.has_predecessor = service.sessions.has_predecessor = state_file.is_waiting
    return None if state_file.is_waiting else _restore(service, state_file, state_file.read())


def _restore(service: Service, state_file: StateFile, found: Found) -> Found:
    """Restore all but answers and sessions, for which `_recover` is called, and start to write."""
    if service.metering is not None:
        for row in found.usage_rows:
            service.metering.replay(row, partial(state_file.usage_rows.settle, str(row[0])))
    service.limits.restore(found.rates)
    service.refused_keys.restore(found.refused_keys)
    service.registry.awaited |= {saved.entry.request.id for saved in found.answers}
    service.registry.awaited |= {parse_stream_id(record.id) for record in found.records}
    service.sessions.awaited |= {saved.id for saved, _ in found.sessions}
    state_file.start()
    return found


async def _recover(service: Service, found: Found | None) -> None:
    """Restore the answers and sessions of an earlier process once the model is loaded. A server that takes over from
    another one serves requests meanwhile.
    """
    if (state_file := service.state_file) is None:
        return
    from app.recovery import recover  # imported only if used: SQLite
    from app.routes.realtime_restore import restore_sessions
    from app.routes.stored_restore import end_lost

    await service.client.ready()
    if state_file.is_waiting:
        try:
            await state_file.wait()
            found = _restore(service, state_file, await asyncio.to_thread(state_file.read))
        except SettingsError as error:
            state_file.give_up()
            log.error("the answers of the server before are lost, and nothing is kept over a restart: %s", error)
        service.registry.has_predecessor = service.sessions.has_predecessor = False
    if found is not None:
        await recover(service, state_file.journal, found.answers, found.elsewhere)
        await end_lost(service, found.records)
        await restore_sessions(service, found.sessions)


def load_text(settings: Settings) -> TextModel:
    """Return the tokenizer and chat template that `settings` select. Raises `TokenizerError`, `InvalidTemplate`."""
    return TextModel.load(
        Path(settings.engine.model),
        settings.chat_template,
        generation_config=settings.generation_config,
        allow_control_tokens=settings.allow_control_tokens,
        tool_parser=settings.tool_parser,
    )


class _Unrouted:
    """Serve a path with a trailing slash as the route without it, and answer 404 for unknown paths."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/")
        if path in (scope["path"], scope.get("root_path", "")):
            raise HTTPException(404)
        await self._router({**scope, "path": path}, receive, send)


def _metering(settings: Settings) -> Metering | None:
    if not settings.metering:
        return None
    from app.observe.metering import Metering  # imported only if used: SQLite

    return Metering(Path(settings.metering))


def _tool_servers(service: Service) -> ToolServers | None:
    if not (addresses := service.settings.mcp):
        return None
    from app.mcp.servers import ToolServers  # imported only if used: an HTTP client

    metrics = ToolCallMetrics(service.metrics.registry, service.settings.model_name)
    return ToolServers(addresses, metrics.observe)


def _collect(service: Service, logs: LogWriter | None, connections: ConnectionLimits) -> None:
    """Register the collectors that are read at scrape time."""
    registry, model = service.metrics.registry, service.settings.model_name
    registry.register(AdmissionCollector(service.admission, model))
    registry.register(SharedUseCollector(service.shared_uses, service.limits, service.admission, model))
    registry.register(BodyCollector(service.bodies, model))
    registry.register(RequestPaceCollector(service.request_pace, model))
    registry.register(EnergyCollector(service.energy, model))
    registry.register(IdempotencyCollector(service.idempotent, model))
    registry.register(KeptSessionCollector(service.sessions, model))
    registry.register(LogCollector(logs))
    registry.register(StoredRecordsCollector(service.store, service.unstored, model))
    registry.register(ConnectionCollector(connections, model))
    registry.register(RefusedKeysCollector(service.refused_keys, model))
    registry.register(WarmRequestsCollector(service.warm, model))
    if (siblings := service.siblings) is not None:
        registry.register(SiblingCollector(lambda: siblings.websockets, model))
    if service.metering is not None:
        registry.register(MeteringCollector(service.metering, model))
    if service.state_file is not None:
        registry.register(StoreCollector(service.state_file, model))
        registry.register(PageRowsCollector(service.state_file.page_rows, model))


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    if isinstance(error, KeyRefused) and error.was_given:
        service: Service = request.app.state.service
        await asyncio.sleep(service.refused_keys.count(client_network(request.scope.get("client"))))
    return _refusal(request, error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == 404:
        message = f"there is no route {request.url.path[:80]}"
        # A path without a method is a WebSocket's; a POST may have been meant for a path with /v1.
        if _route_path(request).startswith("/v1/") or request.scope.get("method") == "POST":
            message += f"; use {', '.join(GENERATING_PATHS[:-1])} or {GENERATING_PATHS[-1]}"
    return _refusal(request, ApiError(error.status_code, message, headers=dict(error.headers or {})))


async def _client_disconnected(_: Request, error: Exception) -> Response:
    return Response(status_code=499)  # the client left while it was still sending


async def _internal_error(request: Request, error: Exception) -> Response:
    # The traceback goes to the log (Starlette re-raises after this answer), never to the client.
    request_id = request.scope[REQUEST_ID]
    log.error("request %s failed", request_id, extra={"fields": {"request_id": request_id}})
    message = f"Internal server error; see the server log for request ID {request_id}."
    headers = {"Connection": "close", "X-Request-Id": request_id}  # after an exception uvicorn closes the connection
    return _refusal(request, ApiError(500, message, code="internal_error", headers=headers))


def _refusal(request: Request, error: ApiError) -> Response:
    """Return an error in the format of the protocol that the request's path belongs to."""
    return JSONResponse(
        wire_format(_route_path(request)).error_body(error), status_code=error.status, headers=error.headers
    )


def _route_path(request: Request) -> str:
    """Return the path below the root path, as routes are declared."""
    path: str = request.scope["path"]
    # A mount adds its own path to `root_path`.
    return path.removeprefix(request.scope.get("app_root_path", request.scope.get("root_path", "")))
