"""Cores and CUDA devices of this machine that this process may use.

All files are read below a root folder, so that a test can describe another machine. Source: the kernel's
sysfs-devices-system-cpu and sysfs-devices-node.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from engine.control_groups import ROOT, read_lines
from engine.placement import Core

COUNT_SECONDS = 120.0  # for the import of torch from a slow disk
COUNT_DEVICES = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


def read_cores(cpus: set[int], root: Path = ROOT) -> list[Core]:
    """Return the physical cores of `cpus`; without a description by the system each is a core of node 0."""
    node_of = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in (root / "sys/devices/system/node").glob("node[0-9]*")
        for cpu in _read_cpus(folder / "cpulist")
    }
    cores: dict[tuple[int, ...], int] = {}
    for cpu in sorted(cpus):
        siblings = set(_read_cpus(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        cores[tuple(sorted((siblings & cpus) | {cpu}))] = node_of.get(cpu, 0)
    return [Core(node, each) for each, node in cores.items()]


def count_cuda_devices(environment: Mapping[str, str]) -> int:
    """Return the number of CUDA devices that torch finds in a process of its own with `environment`.

    The API process does not load torch. Raises `OSError` if the process cannot be started.
    """
    command = [sys.executable, "-c", COUNT_DEVICES]
    done = subprocess.run(
        command, env=dict(environment), capture_output=True, text=True, timeout=COUNT_SECONDS, check=False
    )
    return int(done.stdout) if done.returncode == 0 else 0


def _read_cpus(file: Path) -> Iterator[int]:
    """Yield the numbers of a list such as `0-3,8`; none without the file."""
    for line in read_lines(file):
        for part in filter(None, line.split(",")):
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)
