"""Comparison of two checkouts: figures of nested summaries, and their ratios by round."""

from __future__ import annotations

from benchmarks.trees import OTHER, THIS, compare, medians


def row(number: int, tree: str, figure: str, value: float) -> dict:
    return {"round": number, "benchmark": "peers --runs 1", "tree": tree, "figure": figure, "value": value}


def test_every_figure_of_a_summary_has_its_path_as_name():
    """Values that are no figures are ignored."""
    summary = {"1": {"carousel": {"tokens_per_s": {"median": 5.0, "min": 4.0, "max": 6.0}}}, "note": "x", "mean": 3}
    assert dict(medians(summary)) == {"1, carousel, tokens_per_s": 5.0}


def test_a_ratio_compares_runs_of_the_same_round():
    """A figure that only one checkout has, or that is zero in the other, has no ratio."""
    rows = [
        row(0, OTHER, "rate", 10.0),
        row(0, THIS, "rate", 9.0),
        row(1, THIS, "rate", 24.0),
        row(1, OTHER, "rate", 20.0),
        row(1, OTHER, "old", 1.0),
        row(1, THIS, "new", 1.0),
        row(1, THIS, "idle", 1.0),
        row(1, OTHER, "idle", 0.0),
    ]
    assert compare(rows) == {"peers: rate": {"median": 1.05, "min": 0.9, "max": 1.2}}
