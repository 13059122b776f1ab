"""The number of engines from the wishes of API processes."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from app.ray_launcher.scaling import engine_target, read_wanted


@pytest.mark.parametrize("labels", [{}, {"model_name": "m} x"}, {"model_name": "a", "other": "b"}])
def test_the_wanted_number_is_read_from_the_metrics(labels: dict[str, str]):
    """As the server's own library writes them."""
    registry = CollectorRegistry()
    Gauge("carousel:replicas_wanted_by_others", "Another.", registry=registry).set(9)
    assert read_wanted(generate_latest(registry).decode()) is None
    gauge = Gauge("carousel:replicas_wanted", "Engines.", tuple(labels), registry=registry)
    (gauge.labels(**labels) if labels else gauge).set(3)
    assert read_wanted(generate_latest(registry).decode()) == 3


@pytest.mark.parametrize(
    ("wanted", "present", "target"),
    [([3, 2], 1, 3), ([], 2, 2), ([None, 4], 1, 4), ([None], 3, 3), ([9], 2, 5), ([1], 5, 2), ([], 0, 2), ([], 9, 5)],
)
def test_the_largest_wish_counts_within_the_limits(wanted: list[int | None], present: int, target: int):
    """Without a wish the number stays."""
    assert engine_target(wanted, present, 2, 5) == target
