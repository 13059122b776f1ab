"""Prometheus metrics: vLLM's names, so that existing dashboards work, plus a class label.

Counters and gauges of the engine are read from its last frame when somebody scrapes; histograms are fed as tokens come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.client import EngineClient, Phase
from app.generation import ABANDONED, Generation
from app.streams import Failure, Finished
from engine.types import ServiceClass

# From a millisecond: what is smooth for a person differs below where vLLM's buckets begin.
SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1, 1.5, 2.5, 5, 10, 20, 40, 80, 160,
)  # fmt: skip
LABELS = ("model_name", "service_class")


class Metrics:
    """The registry of one server."""

    def __init__(self, client: EngineClient, model: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self.registry.register(_EngineCollector(client, model))

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"vllm:{name}", text, LABELS, buckets=SECONDS, registry=self.registry)

        self._ttft = histogram("time_to_first_token_seconds", "From the request's arrival to its first token.")
        self._itl = histogram("inter_token_latency_seconds", "Between two tokens of a request.")
        self._e2e = histogram("e2e_request_latency_seconds", "From the request's arrival to its end.")
        self._queue = histogram("request_queue_time_seconds", "From the request's arrival to its first slot.")
        self._success = Counter(
            "vllm:request_success", "Requests that ended.", (*LABELS, "finished_reason"), registry=self.registry
        )
        self._prompt = Counter("vllm:prompt_tokens", "Prompt tokens received.", LABELS, registry=self.registry)
        self._generated = Counter("vllm:generation_tokens", "Tokens generated.", LABELS, registry=self.registry)
        self.refused = Counter(
            "carousel:requests_refused", "Refused because the queue is full.", registry=self.registry
        )
        self._uncounted: list[tuple[ServiceClass, float | None, float]] = []
        # What every token feeds, looked up once: by labels it would cost more than all else that a token costs here.
        self._of_class = {
            service_class: (
                self._generated.labels(model, service_class.label),
                self._ttft.labels(model, service_class.label),
                self._itl.labels(model, service_class.label),
            )
            for service_class in ServiceClass
        }

    def token(self, generation: Generation, gap: float) -> None:
        """One token came, `gap` seconds after the one before it. Counted in a moment: the tokens of a step follow each
        other, and no stream waits for the books of another."""
        if not self._uncounted:
            asyncio.get_running_loop().call_soon(self._count)
        timing = generation.timing
        since_arrival = None
        if timing.first_token is not None and timing.first_token == timing.last_token:
            since_arrival = timing.first_token - timing.submitted
        self._uncounted.append((generation.request.service_class, since_arrival, gap))

    def _count(self) -> None:
        uncounted, self._uncounted = self._uncounted, []
        for service_class, since_arrival, gap in uncounted:
            generated, ttft, itl = self._of_class[service_class]
            generated.inc()
            if since_arrival is not None:
                ttft.observe(since_arrival)
            else:
                itl.observe(gap)

    def ended(self, generation: Generation) -> None:
        """A request ended, whatever way."""
        labels = (self._model, generation.request.service_class.label)
        timing = generation.timing
        self._prompt.labels(*labels).inc(len(generation.request.prompt))
        self._e2e.labels(*labels).observe(time.monotonic() - timing.submitted)
        if timing.started is not None:
            self._queue.labels(*labels).observe(timing.started - timing.submitted)
        for record in generation.log.records:
            if isinstance(record, Finished):
                self._success.labels(*labels, record.reason).inc()
            elif isinstance(record, Failure):
                self._success.labels(*labels, "abort" if record.code == ABANDONED else "error").inc()

    def text(self) -> bytes:
        """The exposition."""
        self._count()
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """Reads the engine's last books."""

    def __init__(self, client: EngineClient, model: str) -> None:
        self._client = client
        self._model = model

    def collect(self) -> Iterator[Metric]:
        load = self._client.load
        up = GaugeMetricFamily("carousel:engine_up", "1 while the engine serves.")
        up.add_metric([], float(self._client.phase is Phase.READY))
        yield up
        if load is None:
            return
        for name, text, values in (
            ("num_requests_running", "Requests in slots.", load.running),
            ("num_requests_waiting", "Requests that wait for their first slot.", load.waiting),
            ("num_requests_paused", "Requests that were paused and wait to go on.", load.paused),
        ):
            prefix = "carousel" if name == "num_requests_paused" else "vllm"  # vLLM has no such thing
            gauge = GaugeMetricFamily(f"{prefix}:{name}", text, labels=LABELS)
            for service_class in ServiceClass:
                gauge.add_metric([self._model, service_class.label], values[service_class])
            yield gauge
        pages, counters = load.pages, load.counters
        usage = GaugeMetricFamily("vllm:kv_cache_usage_perc", "Share of KV pages held.", labels=("model_name",))
        usage.add_metric([self._model], pages.held / pages.total)
        yield usage
        state = GaugeMetricFamily("carousel:kv_pages", "KV pages by state.", labels=("model_name", "state"))
        for label in ("held", "cached", "free", "swapped"):
            state.add_metric([self._model, label], getattr(pages, label))
        yield state
        totals = {
            "vllm:num_preemptions": ("Sequences paused.", counters.swaps + counters.recomputes),
            "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", counters.prompt_tokens),
            "vllm:prefix_cache_hits": ("Prompt tokens found in the prefix cache.", counters.cached_tokens),
            "carousel:preemptions_swap": ("Sequences paused by swap.", counters.swaps),
            "carousel:preemptions_recompute": ("Sequences paused for recomputation.", counters.recomputes),
            "carousel:computed_tokens": ("Tokens put through the model.", counters.computed_tokens),
            "carousel:recomputed_tokens": ("Tokens put through the model again.", counters.recomputed_tokens),
            "carousel:steps": ("Engine steps.", counters.steps),
        }
        for name, (text, value) in totals.items():
            total = CounterMetricFamily(name, text, labels=("model_name",))
            total.add_metric([self._model], value)
            yield total
