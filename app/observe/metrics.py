"""Prometheus metrics under vLLM's names, so that existing dashboards work, plus class and tenant labels.

Owns the metrics that requests update when they start, end or are refused. app/observe/collectors.py has those that are
read at scrape time.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from app.admission.tenants import ANONYMOUS, Tenant
from app.engine_client.client import EngineClient
from app.generation.generation import ABANDONED_CODE, Generation
from app.observe.collectors import GapCollector
from app.observe.engine_collector import ENGINE_LABELS, EngineCollector
from app.observe.rolling_latency import RollingLatency
from app.settings import Settings
from app.streams.stream_log import ChoiceFinished, Failure
from engine.types import Request, ServiceClass

# From a millisecond: differences that people notice lie below vLLM's smallest bucket.
LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1, 1.5, 2.5, 5, 10, 20, 40, 80, 160,
)  # fmt: skip
LABELS = (*ENGINE_LABELS, "tenant")
COUNT_DELAY_SECONDS = 0.01  # until a token is counted; by then the step's other tokens have been sent


class TokenBatch:
    """Uncounted tokens of one class and tenant."""

    __slots__ = ("_begun", "first_token_seconds", "gaps", "tokens")

    def __init__(self, on_first_token: Callable[[], None]) -> None:
        """on_first_token: called with the first token after each count."""
        self._begun = on_first_token
        self.clear()

    def clear(self) -> None:
        """Reset after a count."""
        self.tokens = 0
        self.first_token_seconds: list[float] = []  # of requests: seconds from arrival to the first token
        self.gaps: list[float] = []  # seconds since the previous token of the same choice

    def add_token(self, gap: float | None, time_to_first_token: float | None) -> None:
        """Record a token, with the arguments of `Generation`'s `on_token`. It is counted shortly after, together with
        the step's other tokens, so that counting does not delay the stream of another request.
        """
        if not self.tokens:
            self._begun()
        self.tokens += 1
        if gap is not None:
            self.gaps.append(gap)
        if time_to_first_token is not None:
            self.first_token_seconds.append(time_to_first_token)


class Metrics:
    """Registry of one server."""

    def __init__(self, client: EngineClient, settings: Settings) -> None:
        self.registry = CollectorRegistry()
        self._model = settings.model_name
        self._client = client
        self._price_per_hour = settings.price_per_hour
        self.registry.register(EngineCollector(client, settings.model_name))

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"vllm:{name}", text, LABELS, buckets=LATENCY_BUCKETS, registry=self.registry)

        self._ttft = histogram(
            "time_to_first_token_seconds", "Time from the arrival of the whole request to its first token."
        )
        self._e2e = histogram("e2e_request_latency_seconds", "Time from the arrival of the whole request to its end.")
        self._queue = histogram(
            "request_queue_time_seconds", "Time from the request's submission to the engine to its first slot."
        )
        self._success = Counter(
            "vllm:request_success",
            "Choices that ended; for a failed request, its unfinished choices.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._prompt = Counter("vllm:prompt_tokens", "Prompt tokens received.", LABELS, registry=self.registry)
        self._generated = Counter("vllm:generation_tokens", "Tokens generated.", LABELS, registry=self.registry)
        self._refused = Counter(
            "carousel:requests_refused", "Requests refused before they were queued, by error code.", (*LABELS, "code"),
            registry=self.registry,
        )  # fmt: skip
        self._failed = Counter(
            "carousel:requests_failed", "Requests that ended with an error after they were queued, by error code.",
            (*LABELS, "code"), registry=self.registry,
        )  # fmt: skip
        self._without_note = Counter(
            "carousel:requests_without_note",
            "Resumable requests with such a large body that no other API process can continue them.",
            LABELS,
            registry=self.registry,
        )
        self._adopted = Counter(
            "carousel:adopted_requests",
            "Requests that another API process had lost, and that this one continues.",
            LABELS,
            registry=self.registry,
        )
        self._good = Counter(
            "carousel:requests_within_slo",
            "Requests whose first token and mean gap between tokens were within the objectives.",
            LABELS,
            registry=self.registry,
        )
        self._cached = Counter(
            "carousel:cached_prompt_tokens", "Prompt tokens found in the prefix cache.", LABELS, registry=self.registry
        )
        self._slot_seconds = Counter(
            "carousel:slot_seconds", "Time in slots, summed over choices.", LABELS, registry=self.registry
        )
        self._cost = Counter(
            "carousel:cost",
            "Cost of the time in slots, at --price-per-hour for all slots, in the operator's currency.",
            LABELS,
            registry=self.registry,
        )
        objectives = Gauge(
            "carousel:slo_seconds",
            "Latency objectives of goodput.",
            ("model_name", "objective"),
            registry=self.registry,
        )
        objectives.labels(self._model, "ttft").set(settings.slo_ttft)
        objectives.labels(self._model, "itl").set(settings.slo_itl)
        self.names = {tenant.id: tenant.name for tenant in settings.tenants_by_digest.values()}
        self.recent = RollingLatency(time.monotonic)
        self._slo = settings.slo_ttft, settings.slo_itl
        self._gaps = GapCollector(LABELS, LATENCY_BUCKETS)
        self.registry.register(self._gaps)
        self._token_batches: defaultdict[tuple[ServiceClass, str], TokenBatch] = defaultdict(
            lambda: TokenBatch(self._count_soon)
        )
        self._counting: asyncio.TimerHandle | None = None

    def name_of(self, tenant_id: str) -> str:
        """Return the label of a tenant. All clients without a key share one label, which keeps the number of labels
        small.
        """
        return self.names.get(tenant_id, ANONYMOUS.name)

    def token_batch(self, service_class: ServiceClass, name: str) -> TokenBatch:
        """Return the token counters of a class and the tenants with that name."""
        return self._token_batches[service_class, name]

    def _count_soon(self) -> None:
        if self._counting is None:
            self._counting = asyncio.get_running_loop().call_later(COUNT_DELAY_SECONDS, self._count)

    def _count(self) -> None:
        if self._counting is not None:
            self._counting.cancel()
            self._counting = None
        for (service_class, name), batch in self._token_batches.items():
            if not batch.tokens:
                continue
            labels = self._model, service_class.label, name
            self._generated.labels(*labels).inc(batch.tokens)
            if batch.first_token_seconds:
                ttft = self._ttft.labels(*labels)
                for seconds in batch.first_token_seconds:
                    ttft.observe(seconds)
                    self.recent.add_first_token(service_class, seconds)
            if batch.gaps:
                self._gaps.add(labels, batch.gaps)
                self.recent.add_gaps(service_class, batch.gaps)
            batch.clear()

    def _labels(self, service_class: ServiceClass, tenant: str) -> tuple[str, str, str]:
        return self._model, service_class.label, self.name_of(tenant)

    def count_refusal(self, tenant: Tenant, service_class: ServiceClass, code: str) -> None:
        """Count a request that was refused."""
        self._refused.labels(*self._labels(service_class, tenant.id), code).inc()

    def count_without_note(self, request: Request) -> None:
        """Count a request that no other API process can continue, as its body is too large."""
        self._without_note.labels(*self._labels(request.service_class, request.tenant)).inc()

    def count_adoption(self, request: Request) -> None:
        """Count a request that this process has taken over."""
        self._adopted.labels(*self._labels(request.service_class, request.tenant)).inc()

    def count_end(self, generation: Generation) -> None:
        """Count a request that ended for any reason."""
        timing, request = generation.timing, generation.request
        labels = self._labels(request.service_class, request.tenant)
        self._prompt.labels(*labels).inc(len(request.prompt))
        self._cached.labels(*labels).inc(generation.cached_tokens)
        slot_seconds = generation.timeline.slot_seconds
        self._slot_seconds.labels(*labels).inc(slot_seconds)
        slots = max(1, self._client.slots)
        self._cost.labels(*labels).inc(slot_seconds / slots * self._price_per_hour / 3600)
        self._e2e.labels(*labels).observe(time.monotonic() - timing.received_at)
        if timing.started is not None:
            self._queue.labels(*labels).observe(timing.started - timing.submitted)
        failed, has_left, ended = False, False, 0
        for record in generation.log.records:
            if isinstance(record, ChoiceFinished):
                self._success.labels(*labels, record.reason).inc()
                has_left = has_left or record.reason == "abort"
                ended += 1
            elif isinstance(record, Failure):
                failed = True
                has_left = record.code == ABANDONED_CODE
                reason = "abort" if has_left else "error"
                if not has_left:
                    self._failed.labels(*labels, record.code).inc()
                self._success.labels(*labels, reason).inc(request.n - ended)
        is_good = not failed and self._is_within_slo(generation)
        self._good.labels(*labels).inc(is_good)
        if not has_left:
            self.recent.add_end(request.service_class, is_good)
        elif timing.first_token is not None:  # judged by its pace until its client left
            self.recent.add_end(request.service_class, self._is_within_slo(generation))

    def _is_within_slo(self, generation: Generation) -> bool:
        timing, (ttft, itl) = generation.timing, self._slo
        if timing.first_token is None:
            return False
        return timing.first_token - timing.received_at <= ttft and generation.mean_gap <= itl

    def text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        self._count()
        return generate_latest(self.registry)
