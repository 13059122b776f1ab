"""Energy: what the machine has used since this server was first asked, as far as it tells.

Reads the processors' RAPL counters under /sys/class/powercap and, where the pynvml module is installed, the GPUs' own.
All of it is the machine's, whoever else computes on it. Where nothing can be read there is nothing: no guess.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass
class _Meter:
    """A counter that somebody else keeps. It may begin again at 0 after `wraps_at` joules."""

    read: Callable[[], float]  # joules; raises when that fails
    last: float
    wraps_at: float = 0.0
    joules: float = 0.0

    def advance(self) -> None:
        try:
            now = self.read()
        except Exception:  # the driver's own: this reading is left out, and the next one makes up for it
            return
        if now < self.last:
            self.joules += now + self.wraps_at - self.last if self.wraps_at else now
        else:
            self.joules += now - self.last
        self.last = now


class Energy:
    """Joules by source. Wrapped counters are made up for as long as somebody looks every few minutes."""

    def __init__(self, powercap: Path | None = None) -> None:
        self._powercap = powercap or POWERCAP
        self._lock = threading.Lock()  # two may scrape at once
        self._meters: dict[str, _Meter] | None = None  # looked for when they are first read

    def read(self) -> None:
        """Look at all counters. May take milliseconds: not for the event loop."""
        with self._lock:
            if self._meters is None:
                self._meters = {**_processors(self._powercap), **_gpus()}
            for meter in self._meters.values():
                meter.advance()

    def joules(self) -> dict[str, float]:
        """From the first `read` to the last."""
        return {source: meter.joules for source, meter in (self._meters or {}).items()}


def _processors(powercap: Path) -> dict[str, _Meter]:
    """Packages, and memory, which no package includes. Cores are parts of a package, and psys is all of them again."""
    meters: dict[str, _Meter] = {}
    for zone in sorted(powercap.glob("intel-rapl:*")):
        try:
            name = (zone / "name").read_text().strip()
            parent = (zone.parent / zone.name.rpartition(":")[0] / "name") if zone.name.count(":") > 1 else None
            if not (name.startswith("package") or name == "dram"):
                continue
            source = f"{parent.read_text().strip()}-{name}" if parent is not None else name
            wraps_at = int((zone / "max_energy_range_uj").read_text()) / 1e6
            meters[source] = _meter(lambda file=zone / "energy_uj": int(file.read_text()) / 1e6, wraps_at)  # type: ignore[misc]
        except (OSError, ValueError):  # on most machines root alone may read them
            continue
    return meters


def _gpus() -> dict[str, _Meter]:
    """All that the driver shows, by its numbers."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return {
            f"gpu-{i}": _meter(lambda handle=handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000)  # type: ignore[misc]
            for i, handle in enumerate(handles)
        }
    except Exception:  # no module, no driver, no such counter: the module has an exception for each
        return {}


def _meter(read: Callable[[], float], wraps_at: float = 0.0) -> _Meter:
    return _Meter(read, read(), wraps_at)
