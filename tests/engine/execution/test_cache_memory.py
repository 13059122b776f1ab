"""Memory that a cache takes from the machine before its pages are written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MEASURE = """
from pathlib import Path
import torch
from engine.execution.cache import CacheSpec, KVCache

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

before = resident()
cache = KVCache.allocate(2000, 32, CacheSpec.uniform(8, 4, 64), torch.float32, torch.device("cpu"), host_pages=500)
empty = resident()
cache.data[:100] += 1
assert cache.data[100:].count_nonzero() == 0 and cache.host.count_nonzero() == 0
print(empty - before, cache.data.nbytes + cache.host.nbytes)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_pages_that_were_never_written_take_no_memory():
    """A pool sized for the worst case costs an idle server nothing on a CPU."""
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], cwd=root, capture_output=True, text=True, timeout=120, check=True
    )
    taken, size = map(int, done.stdout.split())
    assert size > 1e9
    assert taken < 0.02 * size, f"{taken / 1e6:.0f} MB of {size / 1e6:.0f} MB"
