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
from app.settings import Settings
from app.streams import Failure, Finished
from app.tenants import ANYBODY
from engine.types import Mechanism, ServiceClass

# From a millisecond: what is smooth for a person differs below where vLLM's buckets begin.
SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1, 1.5, 2.5, 5, 10, 20, 40, 80, 160,
)  # fmt: skip
ENGINE_LABELS = ("model_name", "service_class")
LABELS = (*ENGINE_LABELS, "tenant")


class Metrics:
    """The registry of one server."""

    def __init__(self, client: EngineClient, settings: Settings) -> None:
        self.registry = CollectorRegistry()
        self._model = settings.model_name
        self.registry.register(_EngineCollector(client, settings.model_name))

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
            "carousel:requests_refused", "Refused because as much waited as may.", registry=self.registry
        )
        self._good = Counter(
            "carousel:requests_within_slo",
            "Requests whose first token and mean gap between tokens were within the objectives.",
            LABELS,
            registry=self.registry,
        )
        self._cached = Counter(
            "carousel:cached_prompt_tokens", "Prompt tokens that the prefix cache had.", LABELS, registry=self.registry
        )
        self._slot_seconds = Counter(
            "carousel:slot_seconds", "Time in slots, all choices together.", LABELS, registry=self.registry
        )
        self._names = {tenant.id: tenant.name for tenant in (ANYBODY, *settings.tenants)}
        self._slo = settings.slo_ttft, settings.slo_itl
        self._uncounted: list[tuple[tuple[ServiceClass, str], float | None, float]] = []
        # What every token feeds, looked up once: by labels it would cost more than all else that a token costs here.
        self._of: dict[tuple[ServiceClass, str], tuple[Counter, Histogram, Histogram]] = {}

    def token(self, generation: Generation, gap: float) -> None:
        """One token came, `gap` seconds after the one before it. Counted in a moment: the tokens of a step follow each
        other, and no stream waits for the books of another."""
        if not self._uncounted:
            asyncio.get_running_loop().call_soon(self._count)
        timing, request = generation.timing, generation.request
        since_arrival = None
        if timing.first_token is not None and timing.first_token == timing.last_token:
            since_arrival = timing.first_token - timing.submitted
        self._uncounted.append(((request.service_class, request.tenant), since_arrival, gap))

    def _count(self) -> None:
        uncounted, self._uncounted = self._uncounted, []
        for whose, since_arrival, gap in uncounted:
            if whose not in self._of:
                labels = self._labels(*whose)
                self._of[whose] = self._generated.labels(*labels), self._ttft.labels(*labels), self._itl.labels(*labels)
            generated, ttft, itl = self._of[whose]
            generated.inc()
            if since_arrival is not None:
                ttft.observe(since_arrival)
            else:
                itl.observe(gap)

    def _labels(self, service_class: ServiceClass, tenant: str) -> tuple[str, str, str]:
        return self._model, service_class.label, self._names[tenant]

    def ended(self, generation: Generation) -> None:
        """A request ended, whatever way."""
        timing, request = generation.timing, generation.request
        labels = self._labels(request.service_class, request.tenant)
        self._prompt.labels(*labels).inc(len(request.prompt))
        self._cached.labels(*labels).inc(generation.cached_tokens)
        self._slot_seconds.labels(*labels).inc(generation.audit.slot_seconds)
        self._e2e.labels(*labels).observe(time.monotonic() - timing.submitted)
        if timing.started is not None:
            self._queue.labels(*labels).observe(timing.started - timing.submitted)
        failed = False
        for record in generation.log.records:
            if isinstance(record, Finished):
                self._success.labels(*labels, record.reason).inc()
            elif isinstance(record, Failure):
                failed = True
                self._success.labels(*labels, "abort" if record.code == ABANDONED else "error").inc()
        if not failed and self._is_within_slo(generation):
            self._good.labels(*labels).inc()

    def _is_within_slo(self, generation: Generation) -> bool:
        timing, (ttft, itl) = generation.timing, self._slo
        if timing.first_token is None or timing.last_token is None:
            return False
        gaps = max(1, generation.completion_tokens // generation.request.n - 1)
        return timing.first_token - timing.submitted <= ttft and (timing.last_token - timing.first_token) / gaps <= itl

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
            gauge = GaugeMetricFamily(f"{prefix}:{name}", text, labels=ENGINE_LABELS)
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
            "vllm:num_preemptions": ("Sequences paused.", sum(map(counters.paused_by, Mechanism))),
            "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", counters.prompt_tokens),
            "vllm:prefix_cache_hits": ("Prompt tokens found in the prefix cache.", counters.cached_tokens),
            "carousel:computed_tokens": ("Tokens put through the model.", counters.computed_tokens),
            "carousel:recomputed_tokens": ("Tokens put through the model again.", counters.recomputed_tokens),
            "carousel:swapped_tokens": ("Tokens whose KV was moved to host memory.", counters.swapped_tokens),
            "carousel:deadlines_missed": ("Requests given up as too late.", counters.late),
            "carousel:steps": ("Engine steps.", counters.steps),
            "carousel:busy_seconds": ("With a step under way.", load.busy_seconds),
        }
        for name, (text, value) in totals.items():
            total = CounterMetricFamily(name, text, labels=("model_name",))
            total.add_metric([self._model], value)
            yield total
        preempted = CounterMetricFamily(
            "carousel:preemptions", "Sequences paused, by class and by how.", labels=(*ENGINE_LABELS, "mechanism")
        )
        for service_class, counts in zip(ServiceClass, counters.preemptions, strict=True):
            for mechanism, count in zip(Mechanism, counts, strict=True):
                preempted.add_metric([self._model, service_class.label, mechanism.value], count)
        yield preempted
        info = self._client.info
        slots = GaugeMetricFamily("carousel:slots", "Slots, taken and in all.", labels=("model_name", "state"))
        slots.add_metric([self._model, "taken"], sum(load.running))
        slots.add_metric([self._model, "total"], info.max_num_seqs if info else 0)
        yield slots
        step = GaugeMetricFamily("carousel:step_rows", "What the last step carried.", labels=("model_name", "kind"))
        step.add_metric([self._model, "decodes"], load.decode_rows)
        step.add_metric([self._model, "prompt_tokens"], load.prefill_tokens)
        yield step
        seconds = GaugeMetricFamily("carousel:step_seconds", "Of the last step.", labels=("model_name",))
        seconds.add_metric([self._model], load.step_seconds)
        yield seconds
