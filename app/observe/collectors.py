"""Prometheus collectors that read state at scrape time: queues, limits, stores and meters."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.admission.body_budget import BodyBudget
from app.admission.connection_limits import ConnectionLimits
from app.admission.kept_sessions import KeptSessions
from app.admission.queues import Admission
from app.admission.rate_limits import RateLimits
from app.admission.refused_keys import RefusedKeys
from app.admission.request_pace import RequestPace
from app.admission.shared_uses import SharedUses
from app.conversations.store import ConversationStore
from app.generation.idempotency import IdempotentRequests
from app.generation.warm_requests import WarmRequests
from app.observe.energy import Energy
from app.observe.engine_collector import ENGINE_LABELS
from engine.log_queue import LogWriter
from engine.types import ServiceClass

if TYPE_CHECKING:
    from app.observe.metering import Metering
    from app.store.page_rows import PageRows
    from app.store.state_file import StateFile


class GapCollector(Collector):
    """Histogram of inter-token gaps that accepts all gaps of a step at once."""

    def __init__(self, labels: Sequence[str], bounds: Sequence[float]) -> None:
        """bounds: upper bounds of the buckets, in seconds, ascending."""
        self._labels = labels
        self._bounds = bounds
        self._counts: dict[tuple[str, ...], list[int]] = {}  # of each bucket, by labels
        self._seconds: dict[tuple[str, ...], float] = {}

    def add(self, labels: tuple[str, ...], gaps: Sequence[float]) -> None:
        """Count gaps, in seconds."""
        counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
        for gap in gaps:
            counts[bisect_left(self._bounds, gap)] += 1
        self._seconds[labels] = self._seconds.get(labels, 0.0) + sum(gaps)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "vllm:inter_token_latency_seconds", "Time between two tokens of a choice.", labels=self._labels
        )
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for labels, counts in self._counts.items():
            buckets = [(name, float(count)) for name, count in zip(names, accumulate(counts), strict=True)]
            family.add_metric(labels, buckets, self._seconds[labels])
        yield family


class AdmissionCollector(Collector):
    """Reads the prompt tokens and drain rates of waiting queues."""

    def __init__(self, admission: Admission, model: str) -> None:
        self._admission = admission
        self._model = model

    def collect(self) -> Iterator[Metric]:
        tokens = GaugeMetricFamily(
            "carousel:waiting_prompt_tokens", "Prompt tokens of waiting requests.", labels=ENGINE_LABELS
        )
        rate = GaugeMetricFamily(
            "carousel:drain_rate",
            "Recent drain rate of a queue per second, from which Retry-After is computed.",
            labels=(*ENGINE_LABELS, "unit"),
        )
        for service_class in ServiceClass:
            queue = self._admission.waiting(service_class)
            tokens.add_metric([self._model, service_class.label], queue.tokens)
            for unit, drained in zip(("requests", "tokens"), queue.rates(time.monotonic()), strict=True):
                rate.add_metric([self._model, service_class.label, unit], drained)
        yield tokens
        yield rate


SHARED_LIMIT_CODES = (
    "requests_per_minute_exceeded",
    "tokens_per_minute_exceeded",
    "max_concurrency_exceeded",
    "queue_quota_exceeded",
)


class SharedUseCollector(Collector):
    """Reads what is known of the use of limits in other API processes, and the refusals for which it counted."""

    def __init__(self, shared: SharedUses, limits: RateLimits, queues: Admission, model: str) -> None:
        self._shared = shared
        self._refused = limits.refused_shared, queues.refused_shared
        self._model = model

    def collect(self) -> Iterator[Metric]:
        labels = ("model_name",)
        text = "Other API processes that have posted the use of limits."
        processes = GaugeMetricFamily("carousel:limit_sharing_processes", text, labels=labels)
        processes.add_metric([self._model], self._shared.num_processes)
        yield processes
        text = "Tenants whose use of limits they have posted, each counted for each process."
        tenants = GaugeMetricFamily("carousel:limit_sharing_tenants", text, labels=labels)
        tenants.add_metric([self._model], self._shared.num_tenants)
        yield tenants
        text = "Requests refused by a limit that is used in other API processes too, by error code."
        refused = CounterMetricFamily("carousel:requests_refused_by_shared_limits", text, labels=(*labels, "code"))
        for code in SHARED_LIMIT_CODES:
            refused.add_metric([self._model, code], sum(counts[code] for counts in self._refused))
        yield refused


class MeteringCollector(Collector):
    """Reads the number of metering rows that are pending or lost."""

    def __init__(self, metering: Metering, model: str) -> None:
        self._metering = metering
        self._model = model

    def collect(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(
            "carousel:metering_rows_waiting", "Usage rows that are not yet on disk.", labels=("model_name",)
        )
        waiting.add_metric([self._model], self._metering.waiting)
        yield waiting
        lost = CounterMetricFamily(
            "carousel:metering_rows_lost", "Usage rows dropped because memory was full.", labels=("model_name",)
        )
        lost.add_metric([self._model], self._metering.lost)
        yield lost


class StoreCollector(Collector):
    """Reads the state of the store and of its writer."""

    def __init__(self, state_file: StateFile, model: str) -> None:
        self._state_file = state_file
        self._writer = state_file.writer
        self._model = model

    def collect(self) -> Iterator[Metric]:
        gauges = (
            ("carousel:store_pending_bytes", "Changes that are not yet on disk.", self._writer.pending_bytes),
            ("carousel:store_failing", "Whether the store cannot be written.", int(self._writer.is_failing)),
            ("carousel:store_waiting", "Whether another server has the store.", int(self._state_file.is_waiting)),
        )
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(name, text, labels=("model_name",))
            gauge.add_metric([self._model], value)
            yield gauge
        counters = (
            ("carousel:store_written_bytes", "Changes of the store that are on disk.", self._writer.written_bytes),
            ("carousel:store_lost_changes", "Changes dropped because memory was full.", self._writer.lost),
        )
        for name, text, value in counters:
            counter = CounterMetricFamily(name, text, labels=("model_name",))
            counter.add_metric([self._model], value)
            yield counter


class EnergyCollector(Collector):
    """Reads the machine's energy use; yields nothing if no meter can be read."""

    def __init__(self, energy: Energy, model: str) -> None:
        self._energy = energy
        self._model = model

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "carousel:energy_joules",
            "Energy used by the machine since the first scrape.",
            labels=("model_name", "source"),
        )
        for source, joules in self._energy.joules().items():
            family.add_metric([self._model, source], joules)
        if family.samples:
            yield family


class LogCollector(Collector):
    """Reads the number of dropped log lines."""

    def __init__(self, writer: LogWriter | None) -> None:
        self._writer = writer

    def collect(self) -> Iterator[Metric]:
        text = "Log lines dropped because standard error was not read or cannot be written."
        dropped = CounterMetricFamily("carousel:log_lines_dropped", text)
        dropped.add_metric([], self._writer.dropped if self._writer else 0)
        yield dropped


class RefusedKeysCollector(Collector):
    """Reads the number of refused keys."""

    def __init__(self, refused_keys: RefusedKeys, model: str) -> None:
        self._refused_keys = refused_keys
        self._model = model

    def collect(self) -> Iterator[Metric]:
        text = "Requests with a wrong API key, operator key or metrics key."
        refused = CounterMetricFamily("carousel:keys_refused", text, labels=("model_name",))
        refused.add_metric([self._model], self._refused_keys.total)
        yield refused


class RequestPaceCollector(Collector):
    """Reads the numbers of requests that waited for the turn of their tenant, and of refused ones."""

    def __init__(self, pace: RequestPace, model: str) -> None:
        self._pace = pace
        self._model = model

    def collect(self) -> Iterator[Metric]:
        labels = ("model_name",)
        text = "Requests that needed no engine and waited, because their client sent many."
        delayed = CounterMetricFamily("carousel:requests_delayed", text, labels=labels)
        delayed.add_metric([self._model], self._pace.delayed)
        yield delayed
        text = "Requests that needed no engine and were refused, because too many of their client waited."
        refused = CounterMetricFamily("carousel:requests_rate_refused", text, labels=labels)
        refused.add_metric([self._model], self._pace.refused)
        yield refused


class BodyCollector(Collector):
    """Reads the memory of bodies, and the numbers of waiting and refused ones."""

    def __init__(self, bodies: BodyBudget, model: str) -> None:
        self._bodies = bodies
        self._model = model

    def collect(self) -> Iterator[Metric]:
        labels = ("model_name",)
        text = "Memory reserved for bodies that are read, decoded and tokenized."
        reserved = GaugeMetricFamily("carousel:body_memory_bytes", text, labels=labels)
        reserved.add_metric([self._model], self._bodies.reserved)
        yield reserved
        waiting = GaugeMetricFamily("carousel:bodies_waiting", "Bodies that wait for memory, unread.", labels=labels)
        waiting.add_metric([self._model], self._bodies.waiting)
        yield waiting
        text = "Bodies refused, by the limit that was reached."
        refused = CounterMetricFamily("carousel:bodies_refused", text, labels=(*labels, "limit"))
        for limit, count in self._bodies.refused.items():
            refused.add_metric([self._model, limit], count)
        yield refused


class KeptSessionCollector(Collector):
    """Reads the realtime sessions whose connection was lost."""

    def __init__(self, sessions: KeptSessions[Any], model: str) -> None:
        self._sessions = sessions
        self._model = model

    def collect(self) -> Iterator[Metric]:
        labels = ("model_name",)
        text = "Realtime sessions that are kept, because their connection was lost."
        kept = GaugeMetricFamily("carousel:kept_sessions", text, labels=labels)
        kept.add_metric([self._model], len(self._sessions))
        yield kept
        memory = GaugeMetricFamily("carousel:kept_session_bytes", "Memory of these sessions.", labels=labels)
        memory.add_metric([self._model], self._sessions.bytes)
        yield memory
        text = "Kept realtime sessions that were resumed, have expired, or were evicted for others."
        ended = CounterMetricFamily("carousel:kept_sessions_ended", text, labels=(*labels, "reason"))
        for reason, count in self._sessions.ended.items():
            ended.add_metric([self._model, reason], count)
        yield ended


class SiblingCollector(Collector):
    """Reads the WebSockets that are passed on to other API processes."""

    def __init__(self, websockets: Callable[[], int], model: str) -> None:
        """websockets: returns their number."""
        self._websockets = websockets
        self._model = model

    def collect(self) -> Iterator[Metric]:
        text = "Open WebSockets whose bytes are passed on to the API process that has their session."
        passed_on = GaugeMetricFamily("carousel:forwarded_websockets", text, labels=("model_name",))
        passed_on.add_metric([self._model], self._websockets())
        yield passed_on


class IdempotencyCollector(Collector):
    """Reads the numbers of idempotency keys that are kept, and that were forgotten early."""

    def __init__(self, requests: IdempotentRequests, model: str) -> None:
        self._requests = requests
        self._model = model

    def collect(self) -> Iterator[Metric]:
        labels = ("model_name",)
        kept = GaugeMetricFamily("carousel:idempotency_keys", "Idempotency keys that are kept.", labels=labels)
        kept.add_metric([self._model], len(self._requests.entries))
        yield kept
        text = "Idempotency keys forgotten because their tenant, or all, had too many."
        evicted = CounterMetricFamily("carousel:idempotency_keys_evicted", text, labels=labels)
        evicted.add_metric([self._model], self._requests.entries.evicted)
        yield evicted


class StoredRecordsCollector(Collector):
    """Reads the content of the store of responses, conversations and chat completions, and the responses that only
    their connections can continue.
    """

    def __init__(self, store: ConversationStore, unstored: ConversationStore, model: str) -> None:
        self._store = store
        self._unstored = unstored
        self._model = model

    def collect(self) -> Iterator[Metric]:
        labels = ("model_name", "kind")
        records = GaugeMetricFamily("carousel:stored_records", "Stored records by kind.", labels=labels)
        size = GaugeMetricFamily("carousel:stored_bytes", "Bytes that count for stored records.", labels=labels)
        text = "Records dropped early, because all had too many or too large ones."
        evicted = CounterMetricFamily("carousel:stored_records_evicted", text, labels=labels)
        kinds = {**self._store.usage(), "connection_responses": self._unstored.usage()["responses"]}
        for kind, usage in kinds.items():
            records.add_metric([self._model, kind], usage.records)
            size.add_metric([self._model, kind], usage.bytes)
            evicted.add_metric([self._model, kind], usage.evicted)
        yield from (records, size, evicted)


class PageRowsCollector(Collector):
    """Reads the size of the chat page's rows."""

    def __init__(self, rows: PageRows, model: str) -> None:
        self._rows = rows
        self._model = model

    def collect(self) -> Iterator[Metric]:
        text = "Bytes that count for all rows of the chat page, as of their last use by this process."
        size = GaugeMetricFamily("carousel:page_rows_bytes", text, labels=("model_name",))
        size.add_metric([self._model], self._rows.bytes)
        text = "Joins of rows of the chat page that were refused because of --page-bytes."
        refused = CounterMetricFamily("carousel:page_rows_refused", text, labels=("model_name",))
        refused.add_metric([self._model], self._rows.refused)
        yield from (size, refused)


class WarmRequestsCollector(Collector):
    """Reads the size of what finds ended requests in prefix caches."""

    def __init__(self, warm: WarmRequests, model: str) -> None:
        self._warm = warm
        self._model = model

    def collect(self) -> Iterator[Metric]:
        text = "Bytes that count for the ended requests that can be found in prefix caches."
        size = GaugeMetricFamily("carousel:warm_request_bytes", text, labels=("model_name",))
        size.add_metric([self._model], self._warm.bytes)
        text = "Ended requests that were forgotten early because of their bytes."
        evicted = CounterMetricFamily("carousel:warm_requests_evicted", text, labels=("model_name",))
        evicted.add_metric([self._model], self._warm.evicted)
        yield from (size, evicted)


class ConnectionCollector(Collector):
    """Reads the numbers of open and refused connections."""

    def __init__(self, connections: ConnectionLimits, model: str) -> None:
        self._connections = connections
        self._model = model

    def collect(self) -> Iterator[Metric]:
        labels = ("model_name",)
        opened = GaugeMetricFamily("carousel:connections", "Open connections, WebSockets included.", labels=labels)
        opened.add_metric([self._model], self._connections.open)
        yield opened
        text = "Connections refused, by the limit that was reached."
        refused = CounterMetricFamily("carousel:connections_refused", text, labels=(*labels, "limit"))
        for limit, count in self._connections.refused.items():
            refused.add_metric([self._model, limit], count)
        yield refused
