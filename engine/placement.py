"""Division of one machine among several engines: cores, memory and devices. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import replace

from engine.config import EngineConfig
from engine.errors import ConfigError


@dataclass(frozen=True, slots=True, order=True)
class Core:
    """One physical core. node: its NUMA node. cpus: the numbers of its hardware threads, in order."""

    node: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """Part of the machine that one engine may use.

    cpus: numbers of hardware threads; empty: those of this process. device: empty: that of the configuration. memory:
    share of the host memory that the configuration grants to all engines.
    """

    cpus: tuple[int, ...] = ()
    device: str = ""
    memory: float = 1.0
    threads: int | None = None  # None: one for each core

    def apply_to(self, config: EngineConfig) -> EngineConfig:
        """Return the configuration of an engine with this share."""
        return replace(
            config,
            device=self.device or config.device,
            host_memory_share=self.memory,
            threads=config.threads or self.threads,
        )


WHOLE_MACHINE = Share()


def cpu_shares(cores: Iterable[Core], count: int, *, can_bind: bool = True) -> tuple[Share, ...]:
    """Return the shares of `count` engines on a CPU: disjoint groups of cores, near each other.

    If `count` divides the number of NUMA nodes, each engine gets whole nodes. Hardware threads of a core go to one
    engine, unless there are fewer cores than engines. can_bind: whether the system binds a process to cores; otherwise
    each engine gets as many threads. Raises `ConfigError` for more engines than hardware threads.
    """
    cores = sorted(cores)
    cpus = [core.cpus for core in cores]
    total = sum(map(len, cpus))
    if count > total:
        raise ConfigError(f"replicas must be at most {total}, the cores that this process may use, got {count}")
    nodes = sorted({core.node for core in cores})
    if len(nodes) % count == 0:
        cpus = [tuple(cpu for core in cores if core.node == node for cpu in core.cpus) for node in nodes]
    elif count > len(cpus):
        cpus = [(cpu,) for each in cpus for cpu in each]
    groups = [tuple(cpu for each in part for cpu in each) for part in _parts(cpus, count)]
    return tuple(
        Share(cpus=group if can_bind else (), memory=1 / count, threads=None if can_bind else len(group))
        for group in groups
    )


def gpu_shares(devices: int, count: int) -> tuple[Share, ...]:
    """Return the shares of `count` engines, each with a GPU of its own. Raises `ConfigError` for fewer GPUs."""
    if count > devices:
        raise ConfigError(f"replicas must be at most {devices}, the number of CUDA devices, got {count}")
    return tuple(Share(device=f"cuda:{index}", memory=1 / count) for index in range(count))


def check_device(device: str, count: int) -> None:
    """Raise `ConfigError` for a device with a number, which only one engine can use."""
    if count > 1 and ":" in device:
        raise ConfigError(f"replicas ({count}) cannot be combined with device {device}, which is one device; use cuda")


def _parts(cpus: Sequence[tuple[int, ...]], count: int) -> list[Sequence[tuple[int, ...]]]:
    """Return `count` consecutive parts with lengths that differ by at most one."""
    bounds = [index * len(cpus) // count for index in range(count + 1)]
    return [cpus[first:end] for first, end in pairwise(bounds)]
