"""LiveFeed: state of the engine page, encoded once for any number of watchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from app.engine_client.client import EngineClient
from app.engine_client.member import EngineState
from app.observe.rolling_latency import RollingLatency
from engine.load import EngineLoad, SlotView, Snapshot, WaitView
from engine.types import PreemptionMode, ServiceClass

CHECK_SECONDS = 0.25  # between checks whether the server drains and the engine is ready
PHASE_SECONDS = 5.0  # between two events about an engine that is not ready
MAX_WOKEN_PER_TURN = 10  # watchers; a response takes about 70 us to write
WAKE_SECONDS = 0.002  # between two groups of watchers
ID_CHARACTERS = 6  # of a request's id: enough to follow it on the page, not enough to query it


class LiveFeed:
    """Server-sent events of the engines. A slow watcher misses events of an engine rather than receiving them late.

    While there are watchers, one timer checks whether the feed ends: a timer per watcher would take a tenth of a core
    for 300 of them on an idle server. Watchers are woken a few at a time: 300 responses written in one turn of the
    event loop would block it for 20 ms.
    """

    def __init__(self, client: EngineClient, recent: RollingLatency, is_draining: Callable[[], bool]) -> None:
        self._client = client
        self._recent = recent
        self._is_draining = is_draining
        self._watchers = 0
        self._events: dict[int, tuple[int, bytes]] = {}  # the newest event of each engine, with its number
        self._published = 0  # number of the newest event
        self._waiting: dict[asyncio.Future[None], None] = {}  # watchers of the next event, in order
        self._timer: asyncio.TimerHandle | None = None
        self._before: dict[int, tuple[float, EngineLoad]] = {}  # time and load of each engine's newest snapshot
        self._phases: dict[int, tuple[EngineState, float]] = {}  # phase in the newest event about it, and its time

    async def watch(self, is_admitted: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yield events until the server drains or the watcher is no longer admitted, such as by a revoked key."""
        self._enter()
        seen = self._published
        try:
            while not self._is_draining():
                if seen == self._published:
                    await self._next_event()
                if not is_admitted():
                    break
                newer, seen = [event for number, event in self._events.values() if number > seen], self._published
                for event in newer:
                    if not self._is_draining():
                        yield event
        finally:
            self._leave()

    async def _next_event(self) -> None:
        newer = asyncio.get_running_loop().create_future()
        self._waiting[newer] = None
        try:
            await newer
        finally:
            self._waiting.pop(newer, None)  # on an idle server no event removes watchers that have left

    def _enter(self) -> None:
        self._watchers += 1
        if self._watchers == 1:
            self._before, self._phases = {}, {}
            self._client.snapshots.watch(self._take)
            self._timer = asyncio.get_running_loop().call_later(0, self._check)  # runs when the watcher waits

    def _leave(self) -> None:
        self._watchers -= 1
        if not self._watchers:
            self._client.snapshots.unwatch(self._take)
            if self._timer is not None:
                self._timer.cancel()

    def _check(self) -> None:
        """Publish the phases of engines that are not ready, and the end of the feed."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(CHECK_SECONDS, self._check)
        if self._is_draining():
            self._publish(0, b"")
            return
        for member in self._client.members:
            phase, now = member.phase, loop.time()
            before, published_at = self._phases.get(member.index, (EngineState.READY, 0.0))
            if phase is not EngineState.READY and (phase is not before or now - published_at > PHASE_SECONDS):
                self._phases[member.index] = phase, now
                data = {"engine": member.index, "engines": self._numbers(), "phase": phase.value}
                self._publish(member.index, b"event: engine\ndata: %s\n\n" % msgspec.json.encode(data))

    def _take(self, engine: int, snapshot: Snapshot, load: EngineLoad) -> None:
        now = asyncio.get_running_loop().time()
        head = {"engine": engine, "engines": self._numbers()}
        view = _view(snapshot, load, now, self._before.get(engine)) | head | {"latency": self._recent.view()}
        self._before[engine] = now, load
        self._phases.pop(engine, None)
        self._publish(engine, b"data: %s\n\n" % msgspec.json.encode(view))

    def _numbers(self) -> list[int]:
        return [member.index for member in self._client.members]

    def _publish(self, engine: int, event: bytes) -> None:
        self._published += 1
        self._events[engine] = self._published, event
        waiting, self._waiting = self._waiting, {}
        self._wake(list(waiting))

    def _wake(self, waiting: list[asyncio.Future[None]]) -> None:
        for watcher in waiting[:MAX_WOKEN_PER_TURN]:
            if not watcher.done():  # it may have been cancelled with its connection
                watcher.set_result(None)
        if rest := waiting[MAX_WOKEN_PER_TURN:]:
            asyncio.get_running_loop().call_later(WAKE_SECONDS, self._wake, rest)


def _view(snapshot: Snapshot, load: EngineLoad, now: float, before: tuple[float, EngineLoad] | None) -> dict[str, Any]:
    counters, pages = load.counters, load.pages
    slots: list[dict[str, Any] | None] = [None] * snapshot.total_slots
    for slot in snapshot.slots:
        slots[slot.slot] = _slot(slot)
    rate = prefill_rate = busy = 0.0
    if before is not None and now > before[0] and counters.steps >= before[1].counters.steps:  # of the same engine
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
            "kept": pages.kept,
            "on_host": pages.host_cached,
            "on_disk": pages.on_disk,
        },
        "page_size": snapshot.page_size,
        "tokens_per_s": rate,
        "prefill_tokens_per_s": prefill_rate,
        "busy": busy,
        "step_ms": load.step_seconds * 1000,
        "preemptions": {mechanism.value: counters.paused_by(mechanism) for mechanism in PreemptionMode},
        "prefix_hit_rate": counters.cached_tokens / looked_up if looked_up else 0.0,
        "batch": {"decode": load.decode_rows, "prefill_tokens": load.prefill_tokens},
        "requests_finished": counters.finished,
        "drafts": {
            "steps": counters.drafts,
            "drafted": counters.drafted_tokens,
            "accepted": counters.accepted_tokens,
        },
    }


def _slot(view: SlotView) -> dict[str, Any]:
    return {
        "request": view.request_id[:ID_CHARACTERS],
        "class": view.service_class.label,
        "state": view.state,
        "context": view.context,
        "generated": view.generated,
        "pages": view.pages,
        "step_tokens": view.step_tokens,
    }


def _paused(view: WaitView) -> dict[str, Any]:
    return {
        "request": view.request_id[:ID_CHARACTERS],
        "class": view.service_class.label,
        "by": view.by.label if view.by is not None else None,
        "mechanism": view.mechanism,
        "context": view.context,
    }


def _queued(view: WaitView) -> dict[str, Any]:
    return {
        "request": view.request_id[:ID_CHARACTERS],
        "class": view.service_class.label,
        "cause": view.cause,
        "waited": view.waited,
    }
