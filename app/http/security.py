"""Access control: API keys, the Host and Origin of browsers, and the size of a body."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from urllib.parse import SplitResult, urlsplit

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.admission.addresses import client_network
from app.admission.body_budget import BodyMemory
from app.admission.tenants import ANONYMOUS, Tenant, anonymous, key_digest
from app.errors import ApiError, KeyRefused, error_body
from app.http.connection import STOP_READING
from app.observe.request_log import TENANT
from app.settings import Settings

PROBES = ("/livez", "/readyz")
REFUSAL_SECONDS = 5.0  # delay of the answer to a body for which there is no memory
JSON_TYPES = frozenset({"application/json", ""})
CURL_TYPE = "application/x-www-form-urlencoded"  # of `curl -d`, which examples of Ollama use without a header


def authenticate(connection: HTTPConnection, settings: Settings, *, key: str | None = None) -> Tenant:
    """Return the tenant of the key, or of the address if no keys are configured. Raises `ApiError` (401).

    The given key is hashed and its digest looked up. The time of the lookup depends on the digest alone, from which no
    key can be found: a near miss of a key has an unrelated digest.
    """
    if not settings.requires_keys:
        connection.scope[TENANT] = ANONYMOUS.name
        return anonymous(client_network(connection.scope.get("client")))
    if key is None:
        scheme, _, credentials = connection.headers.get("authorization", "").partition(" ")
        # Anthropic's clients send x-api-key.
        key = credentials.strip() if scheme.lower() == "bearer" else connection.headers.get("x-api-key", "").strip()
    tenant = settings.tenants_by_digest.get(key_digest(key))
    if tenant is None:
        message = "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
        raise KeyRefused(message, "invalid_api_key", was_given=bool(key))
    connection.scope[TENANT] = tenant.name
    return tenant


def authenticate_operator(connection: HTTPConnection, settings: Settings) -> None:
    """Raise `ApiError` unless the request has the operator's key: 401, or 403 if none is configured."""
    if not settings.operator_key:
        raise ApiError(403, "This server has no operator key; --operator-key sets one.", code="operator_key_missing")
    _require(connection, "operator key", "invalid_operator_key", settings.operator_key)
    connection.scope[TENANT] = "operator"


def authenticate_metrics(connection: HTTPConnection, settings: Settings) -> None:
    """Raise `ApiError` unless the request may read /metrics.

    With API keys, tenants must not see each other's names and volumes: 401 without the metrics key or the operator key,
    403 if neither is configured.
    """
    keys = [key for key in (settings.metrics_key, settings.operator_key) if key]
    if settings.public_metrics or not (settings.requires_keys or settings.metrics_key):
        return
    if not keys:
        message = "With API keys, /metrics needs --metrics-key or --operator-key, or --public-metrics to need none."
        raise ApiError(403, message, code="metrics_key_missing")
    _require(connection, "metrics key", "invalid_metrics_key", *keys)
    connection.scope[TENANT] = "operator"


def _require(connection: HTTPConnection, kind: str, code: str, *keys: str) -> None:
    """Raise `ApiError` (401) unless the request has one of `keys`, all of which are compared in constant time."""
    scheme, _, credentials = connection.headers.get("authorization", "").partition(" ")
    given = credentials.strip().encode("utf-8", "surrogatepass")
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise KeyRefused(f"The {kind} is needed: Authorization: Bearer KEY.", code, was_given=bool(given))


async def read_json_body(request: Request, settings: Settings, memory: BodyMemory) -> bytes:
    """Return the body if it is JSON and not too large, for which `memory` is reserved before it is read. Raises
    `ApiError`: 413, 415, 408 if it arrives too slowly, 429 and 503 if there is no memory.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A page of another site can send a form without asking; its browser then names the site in Origin.
    is_curl = content_type == CURL_TYPE and "origin" not in request.headers
    if content_type not in JSON_TYPES and not is_curl:
        raise ApiError(415, f"Content-Type must be application/json, got {content_type[:80]!r}")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "compressed bodies are not accepted: send Content-Encoding: identity")
    limit = settings.max_body
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise ApiError(413, f"the body has {declared} bytes; the limit is {limit}", code="body_too_large")
    try:
        await memory.reserve(int(declared) if declared.isdigit() else limit)
    except ApiError:
        await _hold(request)
        raise
    body = bytearray()
    async with memory.arrival():
        async for chunk in request.stream():
            body += chunk
            memory.count(len(chunk))
            if len(body) > limit:
                raise ApiError(413, f"the body has more than {limit} bytes", code="body_too_large")
    memory.keep(len(body))
    return bytes(body)


async def _hold(request: Request) -> None:
    """Delay the refusal of a body, unread. A client that floods the server would send the next one at once."""
    if STOP_READING in request.scope.get("extensions", {}):
        request.scope["extensions"][STOP_READING]["stop"]()
        await asyncio.sleep(REFUSAL_SECONDS)


class HostMiddleware:
    """Refuse requests that a page of another site could have a browser send to this server.

    Against DNS rebinding, the Host must be a name of this server: on a loopback address `localhost` and loopback
    addresses, on others also any IP address (no page can rebind one) and `own_names`, and in both cases the names in
    `allowed_hosts`; with "*" any name. Against cross-site requests, a WebSocket or a changing request that names an
    Origin must name this server's or an allowed one. Pure ASGI.
    """

    def __init__(self, app: ASGIApp, settings: Settings, own_names: frozenset[str] = frozenset()) -> None:
        self._app = app
        self._allowed = frozenset(settings.allowed_hosts) | own_names
        self._origins = frozenset(settings.allowed_origins)
        self._allows_any = "*" in self._allowed
        self._allows_addresses = not is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        host = connection.headers.get("host", "")
        problem = None
        # HTTP/1.0 has no Host. Its clients are health checks, not browsers, which a page could cause to send a request.
        has_name = bool(host) or scope.get("http_version") != "1.0"
        # Kubernetes sends the pod's address as Host
        is_probe = scope["path"] in PROBES and scope.get("method") == "GET"
        if not is_probe and has_name and not self._is_own(_split(f"//{host}").hostname or ""):
            message = f"The Host {host[:100]!r} is not a name of this server; the option --allowed-hosts adds names."
            problem = (421, message)
        origin = connection.headers.get("origin")
        unsafe = scope["type"] == "websocket" or scope.get("method") not in ("GET", "HEAD", "OPTIONS")
        if problem is None and origin is not None and unsafe and not self._is_allowed_origin(origin, host):
            problem = (403, f"The origin {origin[:100]!r} is not allowed; the option --allowed-origins adds origins.")
        if problem is None:
            await self._app(scope, receive, send)
        else:
            response = JSONResponse(error_body(*problem), status_code=problem[0])
            await response(scope, receive, send)

    def _is_own(self, name: str) -> bool:
        if self._allows_any or name in self._allowed or is_loopback(name):
            return True
        return self._allows_addresses and _is_address(name)

    def _is_allowed_origin(self, origin: str, host: str) -> bool:
        return _split(origin).netloc == host or origin in self._origins or "*" in self._origins


def cross_origin(settings: Settings) -> list[Middleware]:
    """Return CORS middleware that lets browsers show answers to pages of the allowed origins; none without such
    origins. No cookie or other credential of the browser is sent with their requests.
    """
    if not settings.allowed_origins:
        return []
    exposed_headers = ("X-Request-Id", "X-Carousel-Stream", "X-Carousel-Ignored-Tools", "X-Should-Retry", "Retry-After")
    rules = Middleware(
        CORSMiddleware,
        allow_origins=settings.allowed_origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=exposed_headers,
        allow_private_network=True,
    )
    return [rules]


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback one."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def machine_names(host: str) -> frozenset[str]:
    """Return the names of this machine, and `host`, for a server that listens on `host`; none on a loopback address.
    May block for a DNS query.
    """
    if is_loopback(host):
        return frozenset()
    return frozenset(name.lower() for name in (host, socket.gethostname(), socket.getfqdn()))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _split(address: str) -> SplitResult:
    """Return the parts of an address; empty parts for a malformed one."""
    try:
        return urlsplit(address)
    except ValueError:
        return SplitResult("", "", "", "", "")
