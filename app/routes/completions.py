"""POST /v1/completions."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from app.admission.tenants import TIER_OF_CLASS
from app.http.disconnect import run_unless_disconnected
from app.http.security import read_json_body
from app.observe.request_log import client_request_id
from app.protocols import completions
from app.routes import authenticate_request, get_service
from app.routes.responses import encoder_for, respond_whole, resume_grace, stream
from app.streams.timeline import IntakeTimeline


async def text_completions(request: Request) -> Response:
    """Continue a text, streamed or whole."""
    intake = IntakeTimeline(time.monotonic(), client_request_id(request.scope["headers"]) or "")
    service, tenant = get_service(request), authenticate_request(request)
    body = await read_json_body(request, service.settings)
    intake.body_received(time.monotonic())
    asked = await service.parse(completions.CompletionRequest, body, intake)
    service.check_model(asked.model)
    service_class = service.admit(tenant, asked.requested_class)
    prompt = asked.single_prompt
    if isinstance(prompt, str):
        work = service.encode(prompt, service_class, add_special_tokens=True, intake=intake)
        prompt = await run_unless_disconnected(request.receive, work)
    tier, name = TIER_OF_CLASS[service_class], service.settings.model_name
    answer = completions.CompletionFormat(name, tier, service.text, asked.usage_reports(len(prompt)))
    generation = service.generate(
        prompt,
        asked,
        max_tokens=asked.token_limit(service.token_limit(None, len(prompt))),
        logprobs=asked.logprobs,
        encoder=answer,
        tenant=tenant,
        service_class=service_class,
        intake=intake,
        continues_prompt=True,
        grace=resume_grace(request),
    )
    if asked.stream:
        return stream(generation, encoder=encoder_for(request, answer))
    return await respond_whole(request, generation, lambda: answer.body(generation.log, asked.n or 1))
