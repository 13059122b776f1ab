"""Root mean square normalisation of rows, with or without adding the residual first. One program per row."""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_WARPS = 4


@triton.jit
def _rms_norm_kernel(
    x,  # [T, H] any float; overwritten by x + residual when ADD
    residual,  # [T, H] same dtype; read when ADD
    weight,  # [H]
    out,  # [T, H]
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    """Normalises one row, held whole in registers."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    values = tl.load(x + row * H + columns, mask=inside, other=0.0)
    if ADD:
        values += tl.load(residual + row * H + columns, mask=inside, other=0.0)
        tl.store(x + row * H + columns, values, mask=inside)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / H + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * H + columns, (wide * scale * gain).to(values.dtype), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x[T, H], weight[H] -> [T, H]."""
    out = torch.empty_like(x)
    _launch(x, x, weight, out, eps, add=False)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x[T, H], residual[T, H], weight[H] -> (normed, x + residual); the sum is written into `x`."""
    out = torch.empty_like(x)
    _launch(x, residual, weight, out, eps, add=True)
    return out, x


def _launch(x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, eps: float, add: bool) -> None:
    assert x.is_contiguous() and residual.is_contiguous()
    T, H = x.shape
    block = triton.next_power_of_2(H)
    _rms_norm_kernel[(T,)](x, residual, weight, out, eps, H=H, BLOCK=block, ADD=add, num_warps=NUM_WARPS)
