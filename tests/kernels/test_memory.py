"""Memory for what is large and lives long."""

import gc
import mmap
import weakref
from typing import Any

import pytest
import torch

from kernels import memory
from kernels.memory import ALIGNMENT, MAPPING, Arena, own_pages


@pytest.fixture
def mappings(monkeypatch: pytest.MonkeyPatch) -> "weakref.WeakSet[mmap.mmap]":
    """Those that are taken of the system and not given back."""
    alive: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
    take = memory._mapping

    def watched(size: int) -> mmap.mmap:
        mapping = take(size)
        alive.add(mapping)
        return mapping

    monkeypatch.setattr(memory, "_mapping", watched)
    return alive


def test_tensors_of_an_arena_lie_one_behind_the_other():
    """Each at the first multiple of 64 bytes that is free, whatever its dtype, and none reaches into the next."""
    arena = Arena()
    first, second, third = (
        arena.take((3, 7), torch.float32),
        arena.take((5,), torch.uint8),
        arena.take((2,), torch.bfloat16),
    )
    assert second.data_ptr() - first.data_ptr() == 2 * ALIGNMENT  # 84 bytes
    assert third.data_ptr() - second.data_ptr() == ALIGNMENT
    for tensor in (first, second, third):
        assert not tensor.any()
        tensor.fill_(1)
    assert [int(tensor.sum()) for tensor in (first, second, third)] == [21, 5, 2]


def test_a_tensor_that_fits_nowhere_begins_a_mapping_of_its_own(mappings: Any):
    """Also one that is larger than a mapping usually is."""
    arena = Arena()
    kept = [arena.take((1,), torch.uint8), arena.take((MAPPING + 1,), torch.uint8), arena.take((1,), torch.uint8)]
    assert sorted(map(len, mappings)) == [MAPPING, MAPPING, MAPPING + ALIGNMENT]
    assert not any(tensor.any() for tensor in kept)


def test_a_mapping_goes_back_when_all_of_its_tensors_are_gone(mappings: Any):
    """And not before; the arena goes on in another one."""
    arena = Arena()
    first, second = arena.take((9,), torch.float32), arena.take((9,), torch.float32)
    del first
    gc.collect()
    assert len(mappings) == 1
    del second
    gc.collect()
    assert len(mappings) == 0
    assert arena.take((9,), torch.float32).shape == (9,)


def test_nothing_takes_no_memory(mappings: Any):
    """An empty tensor has its shape and dtype."""
    for empty in (Arena().take((0, 3), torch.int32), own_pages((0, 3), torch.int32)):
        assert empty.shape == (0, 3) and empty.dtype == torch.int32
    assert not mappings
