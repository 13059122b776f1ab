"""Memory for large, long-lived tensors."""

import gc
import mmap
import weakref
from typing import Any

import pytest
import torch

from kernels import huge_pages
from kernels.huge_pages import ALIGNMENT_BYTES, MIN_MAPPING_BYTES, Arena, mmap_zeros


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
        arena.allocate((3, 7), torch.float32),
        arena.allocate((5,), torch.uint8),
        arena.allocate((2,), torch.bfloat16),
    )
    assert second.data_ptr() - first.data_ptr() == 2 * ALIGNMENT_BYTES  # 84 bytes
    assert third.data_ptr() - second.data_ptr() == ALIGNMENT_BYTES
    for tensor in (first, second, third):
        assert not tensor.any()
        tensor.fill_(1)
    assert [int(tensor.sum()) for tensor in (first, second, third)] == [21, 5, 2]


def test_a_tensor_that_does_not_fit_starts_a_new_mapping(mappings: Any):
    """A tensor may be larger than the usual mapping."""
    arena = Arena()
    kept = [
        arena.allocate((1,), torch.uint8),
        arena.allocate((MIN_MAPPING_BYTES + 1,), torch.uint8),
        arena.allocate((1,), torch.uint8),
    ]
    assert sorted(map(len, mappings)) == [MIN_MAPPING_BYTES, MIN_MAPPING_BYTES, MIN_MAPPING_BYTES + ALIGNMENT_BYTES]
    assert not any(tensor.any() for tensor in kept)


def test_a_mapping_is_released_with_the_last_of_its_tensors(mappings: Any):
    """It is released no earlier, and the arena continues with another mapping."""
    arena = Arena()
    first, second = arena.allocate((9,), torch.float32), arena.allocate((9,), torch.float32)
    del first
    gc.collect()
    assert len(mappings) == 1
    del second
    gc.collect()
    assert len(mappings) == 0
    assert arena.allocate((9,), torch.float32).shape == (9,)


def test_empty_tensors_take_no_memory(mappings: Any):
    """An empty tensor has its shape and dtype."""
    for empty in (Arena().allocate((0, 3), torch.int32), mmap_zeros((0, 3), torch.int32)):
        assert empty.shape == (0, 3) and empty.dtype == torch.int32
    assert not mappings
