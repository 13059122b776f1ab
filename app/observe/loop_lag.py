"""LoopLag: how late the event loop runs its callbacks, as a metric."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Histogram

INTERVAL_SECONDS = 0.1
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class LoopLag:
    """Sampler of the event loop's lag, ten times a second. Longer blocking is measured in full."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._lag = Histogram(
            "carousel:event_loop_lag_seconds",
            "Delay between the due time of a callback and its execution.",
            ("model_name",),
            buckets=BUCKETS,
            registry=registry,
        ).labels(model)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to sample on the running event loop."""
        self._schedule(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stop sampling."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + INTERVAL_SECONDS
        self._timer = loop.call_at(due, self._sample, loop, due)

    def _sample(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._lag.observe(max(0.0, loop.time() - due))
        self._schedule(loop)
