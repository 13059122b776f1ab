"""Division of this machine among the engines that `--replicas` asks for."""

from __future__ import annotations

import os

import pytest

from app.engine_client import machine
from app.engine_client.engine_process import EngineProcess
from app.engine_client.machine import machine_shares
from app.options import parse
from app.settings import SettingsError
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.host import usable_cpus
from engine.placement import WHOLE_MACHINE

CPU = EngineConfig(model="none", device="cpu")


def test_one_engine_has_the_whole_machine_without_a_look_at_it(monkeypatch: pytest.MonkeyPatch):
    """The start does not wait for a count of GPUs."""
    monkeypatch.setattr(machine, "count_cuda_devices", None)
    assert machine_shares(EngineConfig(model="none"), 1) == (WHOLE_MACHINE,)
    assert machine_shares(CPU, 1) == (WHOLE_MACHINE,)


def test_engines_on_a_cpu_share_its_cores():
    """More engines than cores are refused."""
    count = len(usable_cpus())
    shares = machine_shares(CPU, count)
    assert sorted(cpu for share in shares for cpu in share.cpus) == (sorted(usable_cpus()) if count > 1 else [])
    with pytest.raises(ConfigError, match=f"replicas must be at most {count}, the cores"):
        machine_shares(CPU, count + 1)


def test_engines_get_a_gpu_each_if_there_are_any(monkeypatch: pytest.MonkeyPatch):
    """Device cuda without a GPU is refused, and auto then stands for the CPU."""
    monkeypatch.setattr(machine, "count_cuda_devices", lambda environment: 2)
    auto = EngineConfig(model="none")
    assert [share.device for share in machine_shares(auto, 2)] == ["cuda:0", "cuda:1"]
    monkeypatch.setattr(machine, "count_cuda_devices", lambda environment: 0)
    with pytest.raises(ConfigError, match="device 'cuda' is not available: torch finds no CUDA device"):
        machine_shares(EngineConfig(model="none", device="cuda"), 2)
    assert all(share.device == "" for share in machine_shares(auto, min(2, len(usable_cpus()))))


def test_the_option_is_bounded_and_excludes_a_single_device():
    """Each message names the option."""
    assert parse(["demo", "--replicas", "2"], {}).replicas == 2
    with pytest.raises(SettingsError, match="replicas must be between 1 and 64, got 65"):
        parse(["demo", "--replicas", "65"], {})
    with pytest.raises(ConfigError, match=r"replicas \(2\) cannot be combined with device cuda:0"):
        parse(["demo", "--replicas", "2", "--device", "cuda:0"], {})


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not bind processes to cores")
async def test_an_engine_process_is_bound_to_its_cores_and_this_one_is_not():
    """The process has them from its first instruction on."""
    before = os.sched_getaffinity(0)
    core = min(before)
    engine = EngineProcess(lambda message: iter(()), lambda why: None, cpus=(core,))
    await engine.start(CPU)
    assert engine.process is not None
    assert os.sched_getaffinity(engine.process.pid) == {core} and os.sched_getaffinity(0) == before
    await engine.close(10.0)
