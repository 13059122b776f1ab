"""Kernels that expose the device functions of kernels/triton/noise.py to tests."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton import noise


@triton.jit
def _hash_kernel(row, out, count, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    seed, position, choice = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    key_a = noise.row_key(noise.KEY_START_A, seed, position, choice)
    key_b = noise.row_key(noise.KEY_START_B, seed, position, choice)
    tl.store(out + columns, noise.column_hash(columns, key_a, key_b).to(tl.int64), mask=columns < count)


@triton.jit
def _gumbel_kernel(hashes, out, count, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    words = tl.load(hashes + columns, mask=columns < count, other=0).to(tl.uint32)
    tl.store(out + columns, noise.gumbel(words), mask=columns < count)


def hash_columns(seed: int, position: int, choice: int, count: int, device: torch.device) -> Tensor:
    """Return [count] int64 hashes of one row's columns."""
    row = torch.tensor([seed, position, choice], device=device)
    out = torch.empty(count, dtype=torch.int64, device=device)
    _hash_kernel[(1,)](row, out, count, BLOCK=triton.next_power_of_2(count))
    return out


def gumbel(hashes: Tensor) -> Tensor:
    """Convert int64 hashes to float32 noise."""
    out = torch.empty(hashes.shape, dtype=torch.float32, device=hashes.device)
    _gumbel_kernel[(1,)](hashes, out, hashes.numel(), BLOCK=triton.next_power_of_2(hashes.numel()))
    return out
