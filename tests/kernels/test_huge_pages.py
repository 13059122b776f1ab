"""Memory for large, long-lived tensors."""

import gc
import mmap
import weakref
from typing import Any

import pytest
import torch

from kernels import huge_pages
from kernels.huge_pages import ALIGNMENT, MAPPING, Arena, own_pages


@pytest.fixture
def mappings(monkeypatch: pytest.MonkeyPatch) -> "weakref.WeakSet[mmap.mmap]":
    """Return the live mappings requested from the system."""
    alive: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
    take = huge_pages._mapping

    def watched(size: int) -> mmap.mmap:
        mapping = take(size)
        alive.add(mapping)
        return mapping

    monkeypatch.setattr(huge_pages, "_mapping", watched)
    return alive


def test_tensors_of_an_arena_are_adjacent():
    """Each tensor begins at the first free multiple of 64 bytes, for any dtype, and none overlaps the next."""
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


def test_a_tensor_that_does_not_fit_starts_a_new_mapping(mappings: Any):
    """A tensor may be larger than the usual mapping."""
    arena = Arena()
    kept = [arena.take((1,), torch.uint8), arena.take((MAPPING + 1,), torch.uint8), arena.take((1,), torch.uint8)]
    assert sorted(map(len, mappings)) == [MAPPING, MAPPING, MAPPING + ALIGNMENT]
    assert not any(tensor.any() for tensor in kept)


def test_a_mapping_is_released_with_the_last_of_its_tensors(mappings: Any):
    """It is released no earlier, and the arena continues with another mapping."""
    arena = Arena()
    first, second = arena.take((9,), torch.float32), arena.take((9,), torch.float32)
    del first
    gc.collect()
    assert len(mappings) == 1
    del second
    gc.collect()
    assert len(mappings) == 0
    assert arena.take((9,), torch.float32).shape == (9,)


def test_empty_tensors_take_no_memory(mappings: Any):
    """An empty tensor has its shape and dtype."""
    for empty in (Arena().take((0, 3), torch.int32), own_pages((0, 3), torch.int32)):
        assert empty.shape == (0, 3) and empty.dtype == torch.int32
    assert not mappings
