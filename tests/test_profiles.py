"""Profiles of the suite, and results that its processes share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import profiles
from tests.profiles import examples
from tests.shared_results import once_per_run


def test_ci_runs_a_third_of_the_random_cases_and_a_nightly_run_all(monkeypatch: pytest.MonkeyPatch):
    """A third is rounded up, so that no test is left without a case."""
    monkeypatch.setattr(profiles, "PROFILE", profiles.CI)
    assert [examples(count) for count in (300, 100, 1)] == [100, 34, 1]
    monkeypatch.setattr(profiles, "PROFILE", profiles.NIGHTLY)
    assert [examples(count) for count in (300, 100, 1)] == [300, 100, 1]


def test_a_result_is_computed_once_for_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Processes that need it at the same time wait for the first one."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    computed: list[str] = []

    def compute() -> str:
        computed.append("once")
        return "result"

    def get(worker: int) -> str:
        return once_per_run(tmp_path / f"worker{worker}", "name", compute)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(get, range(8))) == ["result"] * 8
    assert computed == ["once"]


def test_a_failure_is_not_kept(tmp_path: Path):
    """The next process that needs the result computes it again."""
    with pytest.raises(ZeroDivisionError):
        once_per_run(tmp_path, "name", lambda: str(1 // 0))
    assert once_per_run(tmp_path, "name", lambda: "result") == "result"
