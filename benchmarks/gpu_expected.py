"""Predictions and goals for `benchmarks.gpu`, written before anything had run on a device.

Predictions are computed from the ceilings of an H100 (weights, keys and values, launches); a measurement outside the
range needs an explanation. Goals are shares of the measured ceilings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Expected:
    """Expectation of one figure: matching rows, column, predicted range, and goal."""

    what: str
    columns: dict[str, Any]
    figure: str
    predicted: tuple[float, float] | None = None
    goal: float | None = None

    def is_of(self, what: str, row: dict[str, Any]) -> bool:
        """Return whether the expectation applies to a row."""
        return what == self.what and all(row.get(name) == value for name, value in self.columns.items())


EXPECTED = (
    Expected("decode step", {"shape": "Llama-3.2-1B", "batch": 1, "prompt": 512}, "of_bound", (0.79, 0.89), 0.90),
    Expected("decode step", {"shape": "Qwen3-0.6B", "batch": 1, "prompt": 512}, "of_bound", (0.64, 0.76), 0.80),
    Expected("decode step", {"shape": "Llama-3.2-1B", "batch": 32, "prompt": 2048}, "of_bound", (0.70, 0.80)),
    Expected("mixed", {"shape": "Llama-3.2-1B", "sequences": 256}, "of_bound", (0.63, 0.73), 0.85),
    Expected("decode attention", {"batch": 32, "context": 2048, "page_size": 64}, "of_copy_rate", None, 0.92),
    Expected("prefill attention", {"tokens": 2048, "page_size": 64}, "of_matmul_rate", (0.19, 0.31), 0.70),
)


def expectations(what: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns `predicted` and `goal` of a row, if it has any."""
    for expected in EXPECTED:
        if expected.is_of(what, row):
            columns = {"predicted": expected.predicted, "goal": expected.goal}
            return {name: value for name, value in columns.items() if value is not None}
    return {}
