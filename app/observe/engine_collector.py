"""Prometheus collector of the engines' last load reports, read at scrape time. The engine is a label."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.engine_client.client import EngineClient
from engine.load import EngineLoad
from engine.types import PreemptionMode, ServiceClass

ENGINE_LABELS = ("model_name", "service_class")
SESSION_EVENTS = (
    *("moved", "restored", "lost", "beyond_share", "expired"),
    *("stored", "unstored", "read", "unreadable"),
)


class EngineCollector(Collector):
    """Reads the last load report of each engine, and the requests that wait for an engine."""

    def __init__(self, client: EngineClient, model: str) -> None:
        self._client = client
        self._model = model

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("carousel:engine_up", "1 if the engine serves requests.", labels=("engine",))
        restarts = CounterMetricFamily(
            "carousel:engine_restarts", "Engines started to replace one that died.", labels=("engine",)
        )
        for member in self._client.members:
            up.add_metric([str(member.index)], float(member.is_ready and not member.is_stalled))
            restarts.add_metric([str(member.index)], member.restarts)
        yield from (up, restarts)
        unplaced = GaugeMetricFamily(
            "carousel:num_requests_unplaced",
            "Requests that wait in the API process for an engine.",
            labels=ENGINE_LABELS,
        )
        for service_class in ServiceClass:
            unplaced.add_metric([self._model, service_class.label], self._client.num_waiting(service_class))
        yield unplaced
        loads = [(member, member.load) for member in self._client.members if member.load is not None]
        if loads:
            families = _EngineFamilies(self._model)
            for member, load in loads:
                families.add(str(member.index), load, member.info.max_num_seqs if member.info is not None else 0)
            yield from families


class _EngineFamilies:
    """Metrics from load reports, with the engine as a label."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._families: dict[str, Metric] = {}

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())

    def add(self, engine: str, load: EngineLoad, slots: int) -> None:
        """Add the samples of one engine."""
        pages, counters = load.pages, load.counters
        for name, text, by_class in (
            ("vllm:num_requests_running", "Requests in slots.", load.running),
            ("vllm:num_requests_waiting", "Requests waiting for their first slot.", load.waiting),
            ("carousel:num_requests_paused", "Preempted requests waiting to resume.", load.paused),
            ("carousel:num_requests_suspended", "Requests that their clients have paused.", load.suspended),
        ):
            for service_class in ServiceClass:
                self._gauge(name, text, by_class[service_class], engine, service_class=service_class.label)
        self._gauge("vllm:kv_cache_usage_perc", "Share of KV pages held.", pages.held / pages.total, engine)
        for state in ("held", "cached", "free", "swapped"):
            self._gauge("carousel:kv_pages", "KV pages by state.", getattr(pages, state), engine, state=state)
        for place, number in (("device", pages.kept), ("host", pages.host_cached), ("disk", pages.on_disk)):
            text = "KV pages of sessions: kept on the device while they wait for tools, in host memory, and on disk."
            self._gauge("carousel:session_pages", text, number, engine, place=place)
        for event in SESSION_EVENTS:
            text = (
                "Tokens of sessions that were moved to host memory and back, to disk and back, lost, or kept no more."
            )
            self._counter("carousel:session_tokens", text, getattr(counters, f"{event}_tokens"), engine, event=event)
        for position, accepted in enumerate(counters.accepted_by_position):
            name, text = "vllm:spec_decode_num_accepted_tokens_per_pos", "Right guesses by position in their draft."
            self._counter(name, text, accepted, engine, position=str(position))
        for name, (text, total) in _totals(load).items():
            self._counter(name, text, total, engine)
        for service_class, counts in zip(ServiceClass, counters.preemptions, strict=True):
            for mechanism, count in zip(PreemptionMode, counts, strict=True):
                labels = {"service_class": service_class.label, "mechanism": mechanism.value}
                self._counter(
                    "carousel:preemptions", "Preempted sequences by class and mechanism.", count, engine, **labels
                )
        for state, number in (("taken", sum(load.running)), ("total", slots)):
            self._gauge("carousel:slots", "Batch slots by state.", number, engine, state=state)
        for kind, rows in (("decodes", load.decode_rows), ("prompt_tokens", load.prefill_tokens)):
            self._gauge("carousel:step_rows", "Rows of the last step by kind.", rows, engine, kind=kind)
        self._gauge("carousel:step_seconds", "Duration of the last step.", load.step_seconds, engine)
        text = "Seconds that a step may take for prompts that are not urgent."
        self._gauge("carousel:step_seconds_target", text, load.step_target, engine)

    def _gauge(self, name: str, text: str, value: float, engine: str, **labels: str) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = GaugeMetricFamily(name, text, labels=("model_name", "engine", *labels))
        assert isinstance(family, GaugeMetricFamily)
        family.add_metric([self._model, engine, *labels.values()], value)

    def _counter(self, name: str, text: str, value: float, engine: str, **labels: str) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = CounterMetricFamily(name, text, labels=("model_name", "engine", *labels))
        assert isinstance(family, CounterMetricFamily)
        family.add_metric([self._model, engine, *labels.values()], value)


def _totals(load: EngineLoad) -> dict[str, tuple[str, float]]:
    """Return the help and the value of each running total."""
    counters = load.counters
    return {
        "vllm:num_preemptions": ("Preempted sequences.", sum(map(counters.paused_by, PreemptionMode))),
        "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", counters.prompt_tokens),
        "vllm:prefix_cache_hits": ("Prompt tokens found in the prefix cache.", counters.cached_tokens),
        "carousel:computed_tokens": ("Tokens computed by the model.", counters.computed_tokens),
        "carousel:recomputed_tokens": ("Tokens computed again after a preemption.", counters.recomputed_tokens),
        "vllm:spec_decode_num_drafts": ("Drafts of sequences that a step has checked.", counters.drafts),
        "vllm:spec_decode_num_draft_tokens": ("Guessed tokens that a step has checked.", counters.drafted_tokens),
        "vllm:spec_decode_num_accepted_tokens": ("Guessed tokens that were right.", counters.accepted_tokens),
        "carousel:swapped_tokens": ("Tokens whose KV was moved to host memory.", counters.swapped_tokens),
        "carousel:deadlines_missed": ("Requests ended because their deadline could not be met.", counters.late),
        "carousel:mask_seconds": (
            "Processor time of masks of constrained tokens.",
            counters.mask_microseconds / 1e6,
        ),
        "carousel:rows_without_mask": ("Rows that missed a step for their mask.", counters.rows_without_mask),
        "carousel:trials": ("Requests computed alone, as they may have ended an engine.", counters.trials),
        "carousel:trial_pause_seconds": (
            "Time in which other requests waited for one that was computed alone.",
            counters.trial_pause_microseconds / 1e6,
        ),
        "carousel:steps": ("Engine steps.", counters.steps),
        "carousel:busy_seconds": ("Time with a step in progress.", load.busy_seconds),
    }
