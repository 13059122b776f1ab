"""GET /v1/engine/events: the carousel as it turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from app import sse
from app.client import Phase
from app.routes import service_of, tenant_of
from engine.types import Load, Mechanism, ServiceClass, SlotView, Snapshot, WaitView

LOOKS_EVERY = 0.25  # seconds between looks whether the server stops, where no picture comes
TELLS_EVERY = 5.0  # seconds between two words on an engine that is not there
ENDS_WITHIN = 2.0  # seconds, when it does
SHORT = 6  # characters of a request's id: enough to follow it, not enough to ask for it


async def engine_events(request: Request) -> Response:
    """Server-sent snapshots; several a second while something runs. Tells nobody's words and nobody's key. An event
    `engine` says in which phase the engine is while there is none to be drawn."""
    tenant_of(request)
    service = service_of(request)
    client, recent = service.client, service.metrics.recent
    newest: asyncio.Queue[tuple[Snapshot, Load]] = asyncio.Queue(maxsize=1)

    def take(snapshot: Snapshot, load: Load) -> None:
        if newest.full():  # a slow watcher sees fewer pictures, not older ones
            newest.get_nowait()
        newest.put_nowait((snapshot, load))

    async def content() -> AsyncIterator[bytes]:
        before: tuple[float, Load] | None = None
        told, told_at = Phase.READY, 0.0
        loop = asyncio.get_running_loop()
        client.watch(take)
        try:
            while not service.draining:
                try:
                    async with asyncio.timeout(LOOKS_EVERY):
                        snapshot, load = await newest.get()
                except TimeoutError:
                    is_new = client.phase is not told or loop.time() - told_at > TELLS_EVERY
                    if client.phase is not Phase.READY and is_new:
                        told, told_at = client.phase, loop.time()
                        yield b'event: engine\ndata: {"phase":"%s"}\n\n' % told.value.encode()
                    continue
                now, told = loop.time(), Phase.READY
                view = _view(snapshot, load, now, before) | {"felt": recent.view()}
                yield b"data: %s\n\n" % msgspec.json.encode(view)
                before = (now, load)
        finally:
            client.unwatch(take)

    return EventSourceResponse(
        content(),
        headers=sse.HEADERS,
        ping=sse.PING_SECONDS,
        ping_message_factory=lambda: ServerSentEvent(comment="ping"),
        shutdown_grace_period=ENDS_WITHIN,
    )


def _view(snapshot: Snapshot, load: Load, now: float, before: tuple[float, Load] | None) -> dict[str, Any]:
    counters, pages = load.counters, load.pages
    slots: list[dict[str, Any] | None] = [None] * snapshot.total_slots
    for slot in snapshot.slots:
        slots[slot.slot] = _slot(slot)
    rate = prefill_rate = busy = 0.0
    if before is not None and now > before[0] and counters.steps >= before[1].counters.steps:  # of one engine
        seconds, earlier = now - before[0], before[1].counters
        generated = counters.generated_tokens - earlier.generated_tokens
        rate = generated / seconds
        busy = min(1.0, max(0.0, load.busy_seconds - before[1].busy_seconds) / seconds)
        prefill_rate = max(0, counters.computed_tokens - earlier.computed_tokens - generated) / seconds
    looked_up = counters.prompt_tokens
    return {
        "t": now,
        "step": counters.steps,
        "slots": slots,
        "waiting": {c.label: load.waiting[c] for c in ServiceClass},
        "paused": [_paused(w) for w in snapshot.waiting if w.paused],
        "queue": [_queued(w) for w in snapshot.waiting if not w.paused],
        "pages": {
            "total": pages.total,
            "held": pages.held,
            "cached": pages.cached,
            "free": pages.free,
            "swapped": pages.swapped,
        },
        "page_size": snapshot.page_size,
        "tokens_per_s": rate,
        "prefill_tokens_per_s": prefill_rate,
        "busy": busy,
        "step_ms": load.step_seconds * 1000,
        "preemptions": {mechanism.value: counters.paused_by(mechanism) for mechanism in Mechanism},
        "prefix_hit_rate": counters.cached_tokens / looked_up if looked_up else 0.0,
        "batch": {"decode": load.decode_rows, "prefill_tokens": load.prefill_tokens},
        "requests_finished": counters.finished,
    }


def _slot(view: SlotView) -> dict[str, Any]:
    return {
        "request": view.request_id[:SHORT],
        "class": view.service_class.label,
        "state": view.state,
        "context": view.context,
        "generated": view.generated,
        "pages": view.pages,
    }


def _paused(view: WaitView) -> dict[str, Any]:
    return {
        "request": view.request_id[:SHORT],
        "class": view.service_class.label,
        "by": view.by.label if view.by is not None else None,
        "mechanism": view.mechanism,
        "context": view.context,
    }


def _queued(view: WaitView) -> dict[str, Any]:
    return {
        "request": view.request_id[:SHORT],
        "class": view.service_class.label,
        "cause": view.cause,
        "waited": view.waited,
    }
