"""Energy used by the machine since this server first read its meters, where they are readable.

Reads the processors' RAPL counters under /sys/class/powercap and, if the pynvml module is installed, those of GPUs. The
values are the whole machine's, including other processes. Without a readable counter nothing is reported; no value is
estimated.
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
    """An external counter. It may restart at 0 after `wraps_at` joules."""

    read: Callable[[], float]  # returns joules; raises if that fails
    last: float
    wraps_at: float = 0.0
    joules: float = 0.0

    def advance(self) -> None:
        try:
            now = self.read()
        except Exception:  # raised by the driver: skip this reading, the next one includes its joules
            return
        if now < self.last:
            self.joules += now + self.wraps_at - self.last if self.wraps_at else now
        else:
            self.joules += now - self.last
        self.last = now


class Energy:
    """Joules by source. Wrapped counters are corrected as long as `read` is called every few minutes."""

    def __init__(self, powercap: Path | None = None) -> None:
        self._powercap = powercap or POWERCAP
        self._lock = threading.Lock()  # two scrapes may run at once
        self._meters: dict[str, _Meter] | None = None  # found at the first read

    def read(self) -> None:
        """Read all counters. May take milliseconds, so it must not run on the event loop."""
        with self._lock:
            if self._meters is None:
                self._meters = {**_processors(self._powercap), **_gpus()}
            for meter in self._meters.values():
                meter.advance()

    def joules(self) -> dict[str, float]:
        """Return the joules by source between the first and the last `read`."""
        return {source: meter.joules for source, meter in (self._meters or {}).items()}


def _processors(powercap: Path) -> dict[str, _Meter]:
    """Return meters of packages, and of memory, which no package includes. Cores are parts of a package, and psys
    includes everything again.
    """
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
        except (OSError, ValueError):  # on most machines only root may read them
            continue
    return meters


def _gpus() -> dict[str, _Meter]:
    """Return the meters of all GPUs that the driver lists, by index."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return {
            f"gpu-{i}": _meter(lambda handle=handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000)  # type: ignore[misc]
            for i, handle in enumerate(handles)
        }
    except Exception:  # no module, driver or counter; the module has an exception for each
        return {}


def _meter(read: Callable[[], float], wraps_at: float = 0.0) -> _Meter:
    return _Meter(read, read(), wraps_at)
