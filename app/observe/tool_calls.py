"""Metrics of calls of tools of MCP servers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ToolCallMetrics:
    """Counts calls by server and outcome, and their seconds."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._model = model
        labels = ("model_name", "server")
        self._calls = Counter(
            "carousel:tool_calls", "Calls of tools of MCP servers.", (*labels, "outcome"), registry=registry
        )
        text = "Seconds of these calls, without refused ones."
        self._seconds = Histogram("carousel:tool_call_seconds", text, labels, buckets=BUCKETS, registry=registry)

    def observe(self, server: str, outcome: str, seconds: float) -> None:
        """Count a call. outcome: ok, tool_error, failed, timeout, left or refused."""
        self._calls.labels(self._model, server, outcome).inc()
        if outcome != "refused":
            self._seconds.labels(self._model, server).observe(seconds)
