"""Energy in joules from counters of the system."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from app.observe.energy import Energy
from tests.app.routes.test_http import make, ready


def zone(folder: Path, name: str, microjoules: int, wraps_at: int = 1_000_000_000) -> Path:
    folder.mkdir()
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{wraps_at}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder / "energy_uj"


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch):
    """Hide the GPUs of this machine."""
    monkeypatch.setitem(sys.modules, "pynvml", None)


def test_energy_is_counted_from_the_first_reading(tmp_path: Path):
    """The unit is joules, and a counter that wraps to 0 is handled."""
    counter = zone(tmp_path / "intel-rapl:0", "package-0", 999_000_000)
    energy = Energy(tmp_path)
    assert energy.joules() == {}
    energy.read()
    assert energy.joules() == {"package-0": 0.0}
    counter.write_text("999500000\n")
    energy.read()
    assert energy.joules() == {"package-0": 0.5}
    counter.write_text("250000\n")
    energy.read()
    assert energy.joules()["package-0"] == pytest.approx(0.5 + 0.5 + 0.25)


def test_nothing_is_counted_twice(tmp_path: Path):
    """Memory is separate from its package, while cores, psys and the MMIO interface would be counted twice."""
    for folder, name in (
        ("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core"), ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "package-1"), ("intel-rapl:1:0", "dram"), ("intel-rapl:2", "psys"),
        ("intel-rapl-mmio:0", "package-0"),
    ):  # fmt: skip
        zone(tmp_path / folder, name, 5)
    energy = Energy(tmp_path)
    energy.read()
    assert set(energy.joules()) == {"package-0", "package-0-dram", "package-1", "package-1-dram"}


def test_a_counter_that_cannot_be_read_is_skipped(tmp_path: Path):
    """It is skipped at startup, and later its last value stays until it can be read again."""
    (zone(tmp_path / "intel-rapl:0", "package-0", 1)).unlink()
    (tmp_path / "intel-rapl:0" / "energy_uj").mkdir()
    counter = zone(tmp_path / "intel-rapl:1", "package-1", 1_000_000)
    energy = Energy(tmp_path)
    energy.read()
    assert energy.joules() == {"package-1": 0.0}
    counter.write_text("not now")
    energy.read()
    counter.write_text("3000000")
    energy.read()
    assert energy.joules() == {"package-1": 2.0}


def test_gpus_are_read_if_pynvml_is_installed(tmp_path: Path, monkeypatch):
    """NVML counts millijoules."""
    counts = [1000, 5000]
    fake_nvml = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=lambda index: counts[index],
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)
    energy = Energy(tmp_path)
    energy.read()
    counts[:] = [1500, 7000]
    energy.read()
    assert energy.joules() == {"gpu-0": 0.5, "gpu-1": 2.0}


def test_metrics_without_readable_counters_have_no_energy(tmp_path: Path, monkeypatch):
    """If a counter can be read, there are joules by source."""
    monkeypatch.setattr("app.observe.energy.POWERCAP", tmp_path)
    with make() as client:
        assert "energy" not in ready(client).get("/metrics").text
    counter = zone(tmp_path / "intel-rapl:0", "package-0", 0)
    with make() as client:
        ready(client).get("/metrics")
        counter.write_text("2000000")
        assert 'carousel:energy_joules_total{model_name="fake",source="package-0"} 2.0' in client.get("/metrics").text
