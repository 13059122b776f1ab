"""One text with the metrics of several API processes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.observe.merged_metrics import merge_metrics


def metrics_of(number: int) -> str:
    registry = CollectorRegistry()
    Counter("requests", "Requests.", registry=registry).inc(number + 1)
    Histogram("seconds", 'Times, "quoted".', ("model",), registry=registry).labels("a,b{}").observe(0.5)
    return generate_latest(registry).decode()


def test_each_sample_has_the_number_of_its_process():
    """Families stay together, and nothing else changes."""
    merged = list(text_string_to_metric_families(merge_metrics({1: metrics_of(1), 0: metrics_of(0)})))
    single = list(text_string_to_metric_families(metrics_of(0)))
    assert [(family.name, family.type, family.documentation) for family in merged] == [
        (family.name, family.type, family.documentation) for family in single
    ]
    for family, alone in zip(merged, single, strict=True):
        assert len(family.samples) == 2 * len(alone.samples)
        first = [sample for sample in family.samples if sample.labels["api_process"] == "0"]
        assert [sample.name for sample in first] == [sample.name for sample in alone.samples]
    values = {sample.labels["api_process"]: sample.value for sample in merged[0].samples if "total" in sample.name}
    assert values == {"0": 1.0, "1": 2.0}
