"""A killed API process under every kind of answer, in short."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.api_deaths import Servers, measure
from benchmarks.api_deaths_clients import KINDS


def test_no_answer_is_lost_or_changed_by_a_kill_of_the_api_process(tmp_path: Path):
    """One of each kind, in progress at the same time, and none is generated twice."""
    with Servers(tmp_path / "store.db") as servers:
        [row] = asyncio.run(measure(servers, kills=1, streams=len(KINDS)))
    counts = {name: row[name] for name in ("failed", "changed", "out_of_order", "ran_twice")}
    assert counts == dict.fromkeys(counts, 0), row
