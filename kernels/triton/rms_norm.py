"""Root mean square normalisation of rows. One program per row."""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.pdl import pdl_options, wait_for_previous

NUM_WARPS = 4


@triton.jit
def _rms_norm_kernel(
    x,  # [T, H] any float
    gain,  # [H]
    out,  # [T, H]
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Normalise one row, held entirely in registers."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    factor = tl.load(gain + columns, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(USE_PDL)
    values = tl.load(x + row * H + columns, mask=inside, other=0.0)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / H + eps)
    tl.store(out + row * H + columns, (wide * scale * factor).to(values.dtype), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute x / sqrt(mean(x^2) + eps) * weight: x[T, H], weight[H] -> [T, H]."""
    assert x.is_contiguous()
    T, H = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(H)
    _rms_norm_kernel[(T,)](x, weight, out, eps, H=H, BLOCK=block, num_warps=NUM_WARPS, **pdl_options(x.device))
    return out
