"""Division of a machine among engines, and the description of its cores that it is made from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.placement import WHOLE_MACHINE, Core, check_device, cpu_shares, gpu_shares
from engine.topology import count_cuda_devices, read_cores

CONFIG = EngineConfig(model="none")


def cores_of(nodes: list[int], threads: int) -> list[Core]:
    """Return cores with `threads` hardware threads, numbered as Linux does: the second threads after all first ones."""
    total = sum(nodes)
    places = [node for node, count in enumerate(nodes) for _ in range(count)]
    return [Core(node, tuple(index + total * each for each in range(threads))) for index, node in enumerate(places)]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 2), st.data())
def test_every_core_belongs_to_one_engine(nodes: list[int], threads: int, data):
    """No engine is without one, and their numbers differ by at most one core unless nodes stay whole."""
    cores = cores_of(nodes, threads)
    count = data.draw(st.integers(1, sum(nodes) * threads))
    shares = cpu_shares(cores, count)
    assert sorted(cpu for share in shares for cpu in share.cpus) == sorted(cpu for core in cores for cpu in core.cpus)
    sizes = {len(share.cpus) for share in shares}
    assert min(sizes) > 0 and len(shares) == count
    if len(nodes) % count:
        assert max(sizes) - min(sizes) <= threads
    if count <= len(cores):
        assert all(
            set(core.cpus) <= set(share.cpus) for core in cores for share in shares if core.cpus[0] in share.cpus
        )
    assert sum(share.memory for share in shares) == pytest.approx(1)


def test_engines_get_whole_numa_nodes_if_their_number_divides_the_nodes():
    """Three engines on four nodes divide the cores instead."""
    cores = cores_of([2, 2, 2, 2], 2)
    assert [share.cpus for share in cpu_shares(cores, 2)] == [(0, 8, 1, 9, 2, 10, 3, 11), (4, 12, 5, 13, 6, 14, 7, 15)]
    assert [len(share.cpus) for share in cpu_shares(cores, 3)] == [4, 6, 6]


def test_more_engines_than_cores_or_devices_are_refused():
    """The message names the option, the limit and the given number."""
    with pytest.raises(ConfigError, match="replicas must be at most 4, the cores that this process may use, got 5"):
        cpu_shares(cores_of([2], 2), 5)
    with pytest.raises(ConfigError, match="replicas must be at most 1, the number of CUDA devices, got 2"):
        gpu_shares(1, 2)


def test_a_device_with_a_number_serves_one_engine():
    """Without a number each engine gets the device of its own number."""
    with pytest.raises(ConfigError, match=r"replicas \(2\) cannot be combined with device cuda:1"):
        check_device("cuda:1", 2)
    check_device("cuda:1", 1)
    assert [share.apply_to(CONFIG).device for share in gpu_shares(3, 2)] == ["cuda:0", "cuda:1"]


def test_an_engine_gets_threads_where_processes_cannot_be_bound():
    """A given number of threads is kept."""
    shares = cpu_shares(cores_of([5], 1), 2, can_bind=False)
    assert [(share.cpus, share.apply_to(CONFIG).threads) for share in shares] == [((), 2), ((), 3)]
    assert shares[1].apply_to(EngineConfig(model="none", threads=7)).threads == 7


def test_one_engine_has_the_whole_machine():
    """Its configuration is unchanged."""
    assert WHOLE_MACHINE.apply_to(CONFIG) == CONFIG


def test_cores_are_read_with_their_nodes_and_hardware_threads(tmp_path: Path):
    """Threads that this process may not use are left out."""
    for node, cpus in ((0, "0-1,4-5"), (1, "2-3,6-7")):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    for cpu in range(8):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    cores = read_cores({0, 1, 2, 3, 4, 7}, tmp_path)
    assert sorted(cores) == [Core(0, (0, 4)), Core(0, (1,)), Core(1, (2,)), Core(1, (3, 7))]


def test_cores_without_a_description_are_of_one_node(tmp_path: Path):
    """This holds in a container without sysfs, and on other systems."""
    assert read_cores({3, 5}, tmp_path) == [Core(0, (3,)), Core(0, (5,))]


def test_devices_are_counted_in_another_process():
    """A process that cannot import torch has none."""
    assert count_cuda_devices({**os.environ, "CUDA_VISIBLE_DEVICES": ""}) == 0
    assert count_cuda_devices({"PYTHONPATH": "", "PYTHONHOME": "/nowhere"}) == 0
