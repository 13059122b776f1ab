"""Division of this machine among the engines of a service."""

from __future__ import annotations

import os

from app.child_environment import module_environment
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.host import usable_cpus
from engine.placement import WHOLE_MACHINE, Share, cpu_shares, gpu_shares
from engine.topology import count_cuda_devices, read_cores


def machine_shares(config: EngineConfig, replicas: int) -> tuple[Share, ...]:
    """Return the share of each engine. Blocks while GPUs are counted, unless there is one engine or it is on a CPU.

    Raises `ConfigError` for more engines than cores or GPUs, and for a GPU that does not exist.
    """
    if replicas == 1:
        return (WHOLE_MACHINE,)
    devices = count_cuda_devices(module_environment()) if config.device != "cpu" else 0
    if devices:
        return gpu_shares(devices, replicas)
    if config.device == "cuda":
        raise ConfigError("device 'cuda' is not available: torch finds no CUDA device")
    return cpu_shares(read_cores(usable_cpus()), replicas, can_bind=hasattr(os, "sched_setaffinity"))
