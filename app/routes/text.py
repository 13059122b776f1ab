"""Answers of all text protocols, and POST /v1/completions."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from app.admission.body_budget import BodyMemory
from app.admission.tenants import Tenant
from app.admission.thread_queue import Caller
from app.conversations.connection_memory import ConnectionMemory
from app.errors import ApiError
from app.generation.generation import Generation
from app.generation.idempotency import MAX_KEY_CHARACTERS, RETRY_SECONDS
from app.generation.notes import alias_of
from app.generation.prompt_batch import PromptBatch
from app.http.disconnect import run_unless_disconnected
from app.http.security import read_json_body
from app.http.siblings import CONNECT_SECONDS, UNKNOWN_CODES, SiblingAbsent, sibling_absent
from app.observe.request_log import client_request_id
from app.protocols.common import TextRequest
from app.protocols.completions import CompletionRequest
from app.protocols.responses_encoder import ResponsesEncoder
from app.protocols.schema import Strict
from app.routes import authenticate_request, get_service, with_ignored_tools
from app.routes.elsewhere import Elsewhere
from app.routes.responses import respond_now, respond_whole, stream
from app.service import Service
from app.store.entries import Origin
from app.streams.timeline import IntakeTimeline

Body = TypeVar("Body", bound=Strict)
Text = TypeVar("Text", bound=TextRequest)


async def text_completions(request: Request) -> Response:
    """Continue a text, streamed or whole."""
    return await answer(request, CompletionRequest)


@dataclass(frozen=True, slots=True)
class Arrived(Generic[Body]):
    """A valid request with its owner.

    size: bytes of its body. memory: reserved for it until its prompt is made. connection: keeps the responses that are
    not stored, if the request came over one that does. elsewhere: has what other API processes have stored, if the
    request cannot be passed on to them.
    """

    body: Body
    size: int
    service: Service
    tenant: Tenant
    intake: IntakeTimeline
    memory: BodyMemory
    connection: ConnectionMemory | None = None
    elsewhere: Elsewhere | None = None

    @property
    def caller(self) -> Caller:
        """Return the caller of work in threads."""
        return Caller(self.tenant.id, intake=self.intake)


@dataclass(frozen=True, slots=True)
class _Started:
    """A request that was queued, without its body, so that an answer does not keep the body in memory."""

    generation: Generation | PromptBatch
    is_streamed: bool
    is_background: bool
    was_repeated: bool
    ignored_tools: Sequence[str]


async def answer(
    request: Request, schema: type[Text], complete: Callable[[Arrived[Text]], Awaitable[Text]] | None = None
) -> Response:
    """Answer a request of a text protocol, streamed or whole.

    complete: returns the request with content from the server's memory, before its prompt is made. Raises `ApiError`.
    """
    intake = IntakeTimeline(time.monotonic(), client_request_id(request.scope["headers"]) or "")
    tenant = authenticate_request(request)
    with get_service(request).bodies.memory(tenant.id) as memory:
        started = await _start(request, schema, complete, tenant, intake, memory)
    if isinstance(started, Response):
        return started
    response = await _respond(request, started)
    if started.was_repeated:
        response.headers["Idempotent-Replayed"] = "true"
    return with_ignored_tools(request, response, started.ignored_tools)


async def _start(
    request: Request,
    schema: type[Text],
    complete: Callable[[Arrived[Text]], Awaitable[Text]] | None,
    tenant: Tenant,
    intake: IntakeTimeline,
    memory: BodyMemory,
) -> _Started | Response:
    """Read a request and queue it, or find the answer of an earlier one with its key. Return the answer to a request
    that needs no text from the model.
    """
    service = get_service(request)
    body = await read_json_body(request, service.settings, memory)
    intake.body_received(time.monotonic())
    key = _idempotency_key(request)
    if (elsewhere := await _home_answer(request, service, tenant, key, body)) is not None:
        return elsewhere
    parsed = await service.prompts.parse(schema, body, Caller(tenant.id, intake=intake))
    if complete is not None:
        try:
            parsed = await complete(Arrived(parsed, len(body), service, tenant, intake, memory))
        except ApiError as error:
            if (elsewhere := await _answer_elsewhere(request, service, error, body)) is None:
                raise
            return elsewhere
    if (instant := parsed.instant_answer) is not None:
        service.check_loaded()
        return JSONResponse({"model": service.settings.model_name} | instant)
    resume_seconds = resume_seconds_of(request)
    header = "X-Carousel-Resume" if resume_seconds else "Idempotency-Key"
    grace = max(resume_seconds, RETRY_SECONDS if key else 0.0)
    requests = parsed.generation_requests(grace, header)
    digest = b"" if key is None else hashlib.sha256(request.url.path.encode() + b"\0" + body).digest()
    if service.keeps_origins and (grace or parsed.is_stored):
        requests = [replace(requests[0], origin=Origin(schema.__name__, body, grace, key or "", digest))]
    generation: Generation | PromptBatch
    was_repeated = False
    if len(requests) > 1:
        generation = await run_unless_disconnected(request.receive, service.generate_batch(requests, tenant, intake))
    elif key is None:
        generation = await run_unless_disconnected(request.receive, service.generate(requests[0], tenant, intake))
    else:
        if service.adopt is not None and not service.idempotent.has(tenant.id, key):
            service.check_restored()  # its answer may be one of those that this process had before
            await service.adopt(alias_of(tenant.id, key), tenant.owner)
        start = partial(service.generate, requests[0], tenant, intake)
        generation, was_repeated = await run_unless_disconnected(
            request.receive, service.idempotent.run(tenant, key, digest, start)
        )
    return _Started(generation, parsed.is_streamed, parsed.is_background, was_repeated, parsed.ignored_tools)


async def _home_answer(
    request: Request, service: Service, tenant: Tenant, key: str | None, body: bytes
) -> Response | None:
    """Return the answer of the API process that has the answers of an idempotency key; None if this one does."""
    siblings = service.siblings
    if key is None or siblings is None or siblings.has_sent(request.scope):
        return None
    if (home := siblings.home_of(tenant.id, key)) == siblings.index:
        return None
    try:
        return await siblings.forward(home, request.scope, body, CONNECT_SECONDS)
    except OSError:
        message = "the API process that has the answers of this Idempotency-Key is being started again"
        raise ApiError(503, message, code="engine_unavailable", headers={"Retry-After": "1"}) from None


async def _answer_elsewhere(request: Request, service: Service, error: ApiError, body: bytes) -> Response | None:
    """Return the answer of the API process that has the response or conversation that a request continues; None if
    none has it, or the error is another one.
    """
    siblings = service.siblings
    if error.code not in UNKNOWN_CODES or siblings is None or siblings.has_sent(request.scope):
        return None
    try:
        return await siblings.find(request.scope, body)
    except SiblingAbsent:
        raise sibling_absent() from None


async def _respond(request: Request, started: _Started) -> Response:
    """Return the answer, streamed, whole, or as of now."""
    generation = started.generation
    encoder = generation.encoder
    assert encoder is not None  # every text protocol has one
    if started.is_streamed:
        return stream(generation, resumes=expects_status(request))
    if started.is_background:
        assert isinstance(encoder, ResponsesEncoder)  # no other protocol has background answers
        return await respond_now(generation.log, encoder)
    return await respond_whole(request, generation, encoder)


def expects_status(request: Request) -> bool:
    """Return whether the client reads status comments and event ids, which others may not be able to parse."""
    return "x-carousel-resume" in request.headers


def _idempotency_key(request: Request) -> str | None:
    """Return the key under which a repeated request gets the same answer, if any. Raises `ApiError`."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise ApiError(
            400,
            f"Idempotency-Key must have 1 to {MAX_KEY_CHARACTERS} characters, got {len(key)}",
            param="Idempotency-Key",
        )
    return key


def resume_seconds_of(connection: HTTPConnection) -> float:
    """Return the seconds for which an answer continues without a reader (`X-Carousel-Resume`). Raises `ApiError`."""
    value = connection.headers.get("x-carousel-resume")
    if value is None:
        return 0.0
    if not (value.isascii() and value.isdigit() and len(value) < 6):
        raise ApiError(
            400,
            f"X-Carousel-Resume must be a whole number of seconds, got {value[:40]!r}",
            param="X-Carousel-Resume",
        )
    return float(value)
