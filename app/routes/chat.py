"""POST /v1/chat/completions."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from app.admission.tenants import TIER_OF_CLASS
from app.http.disconnect import run_unless_disconnected
from app.http.security import read_json_body
from app.observe.request_log import client_request_id
from app.protocols import chat
from app.routes import authenticate_request, get_service
from app.routes.responses import encoder_for, respond_whole, resume_grace, stream
from app.streams.timeline import IntakeTimeline


async def chat_completions(request: Request) -> Response:
    """Answer a conversation, streamed or whole."""
    intake = IntakeTimeline(time.monotonic(), client_request_id(request.scope["headers"]) or "")
    service, tenant = get_service(request), authenticate_request(request)
    body = await read_json_body(request, service.settings)
    intake.body_received(time.monotonic())
    asked = await service.parse(chat.ChatRequest, body, intake)
    service.check_model(asked.model)
    service_class = service.admit(tenant, asked.requested_class)
    text = await service.render_chat(
        asked.turns,
        asked.chat_template_kwargs,
        add_generation_prompt=asked.add_generation_prompt is not False,
        continue_final_message=bool(asked.continue_final_message),
    )
    work = service.encode(text, service_class, add_special_tokens=False, intake=intake, names=asked.parameter_names)
    prompt = await run_unless_disconnected(request.receive, work)
    tier = TIER_OF_CLASS[service_class]
    reports = asked.usage_reports(len(prompt))
    answer = chat.ChatFormat(service.settings.model_name, tier, service.text, reports)
    generation = service.generate(
        prompt,
        asked,
        max_tokens=service.token_limit(asked.token_limit, len(prompt)),
        logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        encoder=answer,
        tenant=tenant,
        service_class=service_class,
        intake=intake,
        names=asked.parameter_names,
        continues_prompt=bool(asked.continue_final_message),
        grace=resume_grace(request),
    )
    if asked.stream:
        return stream(generation, encoder=encoder_for(request, answer))
    return await respond_whole(request, generation, lambda: answer.body(generation.log, asked.n or 1))
