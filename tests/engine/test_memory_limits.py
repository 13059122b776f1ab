"""Memory limits of control groups and of the process, as described by a folder of files, and real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.host import free_memory_bytes, total_memory
from tests.conftest import ROOT

MIB = 1 << 20
V1_UNLIMITED = "9223372036854771712"
PROGRAM = "from engine.host import *; import sys; print(free_memory_bytes(), total_memory().limit)"


class Machine:
    """A machine as a folder of files, with 8 GiB of available memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def join(self, path: str, *, version: int = 2, mount_root: str = "/") -> None:
        """Put this process into a group; show the hierarchy from `mount_root` on."""
        if version == 2:
            self.write("proc/self/cgroup", f"0::{path}\n")
            mounted = f"30 23 0:26 {mount_root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
        else:
            self.write("proc/self/cgroup", f"9:name=systemd:/\n4:memory:{path}\n3:cpu,cpuacct:/\n0::/\n")
            mounted = f"35 31 0:32 {mount_root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            mounted += "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        self.write("proc/self/mountinfo", f"23 1 254:0 / / rw - ext4 /dev/vda rw\n{mounted}")

    def limit(self, folder: str, limit: str, used: int, cache: int = 0, *, version: int = 2) -> None:
        """Describe one group."""
        parent = f"sys/fs/cgroup{'' if version == 2 else '/memory'}{folder}"
        names = ("memory.max", "memory.current", "") if version == 2 else V1_NAMES
        self.write(f"{parent}/{names[0]}", f"{limit}\n")
        self.write(f"{parent}/{names[1]}", f"{used}\n")
        self.write(f"{parent}/memory.stat", f"anon 1\n{names[2]}inactive_file {cache}\nactive_file 3\n")

    @property
    def memory(self) -> tuple[int, int]:
        """Return free and total MiB."""
        return free_memory_bytes(self.root) // MIB, total_memory(self.root).limit // MIB


V1_NAMES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_limits_the_available_memory_is_free(machine: Machine):
    """The total is the physical memory."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert free_memory_bytes(machine.root) == 8 << 30
    assert total_memory(machine.root).limit == physical


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_below_the_hierarchy_s_root_counts(machine: Machine, version: int):
    """systemd sets MemoryMax on the group of a service."""
    machine.join("/system.slice/carousel.service", version=version)
    machine.limit("/system.slice/carousel.service", str(614 * MIB), 100 * MIB, version=version)
    machine.limit("/system.slice", "max" if version == 2 else V1_UNLIMITED, 300 * MIB, version=version)
    assert machine.memory == (514, 614)
    assert "/system.slice/carousel.service" in total_memory(machine.root).source


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_an_ancestor_counts_with_the_usage_of_all_its_groups(machine: Machine, version: int):
    """The nearest limit need not be the tightest."""
    machine.join("/pods/one/server", version=version)
    machine.limit("/pods/one/server", str(900 * MIB), 100 * MIB, version=version)
    machine.limit("/pods/one", str(1000 * MIB), 700 * MIB, version=version)
    machine.limit("/pods", str(2000 * MIB), 750 * MIB, version=version)
    assert machine.memory == (300, 900)


@pytest.mark.parametrize("version", [1, 2])
def test_page_cache_in_a_group_counts_as_free(machine: Machine, version: int):
    """The system takes it back before it ends a process; reading the weights fills it."""
    machine.join("/a", version=version)
    machine.limit("/a", str(1000 * MIB), 800 * MIB, 600 * MIB, version=version)
    assert machine.memory == (800, 1000)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("path", "mount_root"), [("/docker/abc", "/docker/abc"), ("/", "/"), ("/../other", "/"), ("/a", "/b")]
)
def test_in_a_container_the_files_at_the_mount_point_count(machine: Machine, version: int, path: str, mount_root: str):
    """With a namespace of its own, with the host's paths, and with a path outside the part that is mounted."""
    machine.join(path, version=version, mount_root=mount_root)
    machine.limit("", str(500 * MIB), 200 * MIB, version=version)
    assert machine.memory == (300, 500)


def test_a_group_beyond_memory_high_is_slowed_down_so_it_is_a_limit(machine: Machine):
    """systemd's MemoryHigh."""
    machine.join("/a")
    machine.limit("/a", "max", 100 * MIB)
    machine.write("sys/fs/cgroup/a/memory.high", str(400 * MIB))
    assert machine.memory == (300, 400)


def test_a_group_beyond_its_limit_has_no_free_memory(machine: Machine):
    """The limit may be lowered below the usage."""
    machine.join("/a")
    machine.limit("/a", str(100 * MIB), 150 * MIB)
    assert machine.memory == (0, 100)


@pytest.mark.parametrize(("limit", "used"), [("Max address space", "VmSize"), ("Max data size", "VmData")])
def test_the_limits_of_ulimit_count_without_the_present_size(machine: Machine, limit: str, used: str):
    """Of a service too, as LimitAS and LimitDATA."""
    machine.write("proc/self/limits", f"Limit  Soft Limit  Hard Limit  Units\n{limit:25} {600 * MIB} unlimited bytes\n")
    machine.write("proc/self/status", f"Name:\tpython\n{used}:\t  {250 * 1024} kB\n")
    assert machine.memory == (350, 600)


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """Yield a new control group of this machine without a limit; skip the test where none can be made."""
    for parent in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = parent / f"carousel-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if any((group / name).exists() for name in ("memory.max", "memory.limit_in_bytes")):
            yield group
            group.rmdir()
            return
        group.rmdir()
    pytest.skip("needs the right to make a control group with a memory limit")


def test_a_real_control_group_limits_the_free_memory(memory_group: Path):
    """A child that moves into it reads its limit."""
    limit = next(
        memory_group / name for name in ("memory.max", "memory.limit_in_bytes") if (memory_group / name).exists()
    )
    limit.write_text(str(614 * MIB))
    command = f"echo $$ > {memory_group}/cgroup.procs; exec {sys.executable} -c '{PROGRAM}'"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    free, total = map(int, done.stdout.split())
    assert 300 * MIB < free < 614 * MIB == total


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(("flag", "name"), [("v", "address space"), ("d", "data size")])
def test_a_real_ulimit_limits_the_free_memory(flag: str, name: str):
    """The shell's unit is KiB."""
    command = f"ulimit -{flag} {614 * 1024}; exec {sys.executable} -c '{PROGRAM}'"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    free, total = map(int, done.stdout.split())
    assert 100 * MIB < free < 614 * MIB == total, name


PLAN = """
import resource, torch
from types import SimpleNamespace
from engine.build import _size_cache
from engine.config import EngineConfig
from engine.execution.cache import CacheSpec
from engine.host import free_memory_bytes
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20),) * 2)
spec = CacheSpec.uniform(layers=1, heads=1, head_dim=256)
model = SimpleNamespace(device=torch.device("cpu"), cache_spec=lambda: spec, vocab_size=10)
config = EngineConfig(model="", page_size=1024, swap_space=8.0)
print(*_size_cache(config, model, torch.bfloat16, max_len=1 << 20))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_plan_of_the_cache_and_of_swapped_pages_respects_a_limit():
    """Of 400 MiB at most a half is for the cache, and at most a half of the rest for swapped pages, with a warning."""
    done = subprocess.run(
        [sys.executable, "-c", PLAN], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    pages, host_pages = map(int, done.stdout.split())  # of 1 MiB each
    assert 150 <= pages <= 200 and 80 <= host_pages <= (400 - pages) / 2
    assert "swap_space is 8 GiB, of which 0.1" in done.stderr
