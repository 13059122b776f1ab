"""Faults of one of two engines, and of the network, under every kind of answer, in short."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.api_deaths_clients import KINDS
from benchmarks.fleet_faults import ENGINE, SERVER, measure
from benchmarks.fleet_processes import TwoEngines
from engine.host import num_cores


@pytest.mark.skipif(num_cores() < 2, reason="two engines need two cores")
def test_no_answer_is_lost_or_changed_by_a_fault_of_an_engine_or_its_network(tmp_path: Path, monkeypatch):
    """One of each kind of answer, in progress at the same time, and none is generated twice."""
    monkeypatch.setattr("benchmarks.fleet_faults.FAULT_SECONDS", 6.0)
    faults = ("kill", "drain", "cut")
    fleet = TwoEngines(tmp_path, ENGINE, SERVER)
    rows = asyncio.run(measure(fleet, dict.fromkeys(faults, 1), streams=len(KINDS)))
    assert [row["fault"] for row in rows] == ["none", *faults]
    for row in rows:
        counts = {name: row[name] for name in ("failed", "changed", "out_of_order", "ran_twice")}
        assert counts == dict.fromkeys(counts, 0), row
