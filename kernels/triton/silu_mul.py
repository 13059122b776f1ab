"""Gate of a SwiGLU feed-forward layer. One program per row and block of columns."""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.pdl import pdl_options, wait_for_previous

BLOCK = 1024
NUM_WARPS = 4


@triton.jit
def _silu_mul_kernel(
    gate_up,  # [T, 2I] any float
    out,  # [T, I] same dtype
    WIDTH: tl.constexpr,  # I
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Compute silu(gate) * up for BLOCK columns of one row, in float32."""
    wait_for_previous(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + columns, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + columns, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    product = wide * tl.sigmoid(wide) * up.to(tl.float32)
    tl.store(out + row * WIDTH + columns, product.to(gate.dtype), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Compute silu(first half) * second half: gate_up[T, 2I] -> [T, I]."""
    assert gate_up.is_contiguous()
    T, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((T, width))
    grid = (T, triton.cdiv(width, BLOCK))
    _silu_mul_kernel[grid](gate_up, out, WIDTH=width, BLOCK=BLOCK, num_warps=NUM_WARPS, **pdl_options(gate_up.device))
    return out
