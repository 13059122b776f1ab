"""QK-norm, rotary embedding and the write to the paged cache in one kernel. One program per token and head."""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.paging import page_rows
from kernels.plans import RopePlan

NUM_WARPS = 1  # a head is at most a few hundred values


@triton.jit
def _normalise(first, second, weight, halves, inside, eps, HEAD_DIM: tl.constexpr):
    """RMSNorm of one head given as two halves in float32; weight: [D]."""
    square_sum = tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)
    scale = tl.rsqrt(square_sum / HEAD_DIM + eps)
    first_gain = tl.load(weight + halves, mask=inside, other=0.0).to(tl.float32)
    second_gain = tl.load(weight + HEAD_DIM // 2 + halves, mask=inside, other=0.0).to(tl.float32)
    return first * scale * first_gain, second * scale * second_gain


@triton.jit
def _rope_and_cache_kernel(
    q,  # [T, Hq, D] any float, strided over T
    k,  # [T, Hkv, D], strided over T
    v,  # [T, Hkv, D], strided over T
    cos_sin,  # [max_pos, D] float32
    positions,  # [T] int64
    slots,  # [T] int64
    k_cache,  # [N, Hkv, S, D]
    v_cache,  # [N, Hkv, S, D]
    q_norm,  # [D], read when Q_NORM
    k_norm,  # [D], read when K_NORM
    q_out,  # [T, Hq, D]
    q_stride,
    k_stride,
    v_stride,
    page_rows,  # of D numbers, from one page to the next
    eps,
    QUERY_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF_BLOCK: tl.constexpr,  # D / 2 rounded up to a power of two
    PAGE_SIZE: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
):
    """Programs of the first Hq heads rotate a query head; the others rotate a key head and store it with its value
    head.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    halves = tl.arange(0, HALF_BLOCK)
    inside = halves < HALF
    table = cos_sin + tl.load(positions + token) * HEAD_DIM
    cos = tl.load(table + halves, mask=inside, other=0.0)
    sin = tl.load(table + HALF + halves, mask=inside, other=0.0)
    if head < QUERY_HEADS:
        source = q + token * q_stride + head * HEAD_DIM
        first = tl.load(source + halves, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(source + HALF + halves, mask=inside, other=0.0).to(tl.float32)
        if Q_NORM:
            first, second = _normalise(first, second, q_norm, halves, inside, eps, HEAD_DIM)
        target = q_out + (token * QUERY_HEADS + head) * HEAD_DIM
        tl.store(target + halves, (first * cos - second * sin).to(q_out.dtype.element_ty), mask=inside)
        tl.store(target + HALF + halves, (second * cos + first * sin).to(q_out.dtype.element_ty), mask=inside)
    else:
        slot = tl.load(slots + token)
        if slot >= 0:
            kv_head = head - QUERY_HEADS
            row = slot // PAGE_SIZE * page_rows + kv_head * PAGE_SIZE + slot % PAGE_SIZE
            source = k + token * k_stride + kv_head * HEAD_DIM
            first = tl.load(source + halves, mask=inside, other=0.0).to(tl.float32)
            second = tl.load(source + HALF + halves, mask=inside, other=0.0).to(tl.float32)
            if K_NORM:
                first, second = _normalise(first, second, k_norm, halves, inside, eps, HEAD_DIM)
            target = k_cache + row * HEAD_DIM
            tl.store(target + halves, (first * cos - second * sin).to(k_cache.dtype.element_ty), mask=inside)
            tl.store(target + HALF + halves, (second * cos + first * sin).to(k_cache.dtype.element_ty), mask=inside)
            value = v + token * v_stride + kv_head * HEAD_DIM
            target = v_cache + row * HEAD_DIM
            tl.store(target + halves, tl.load(value + halves, mask=inside), mask=inside)
            tl.store(target + HALF + halves, tl.load(value + HALF + halves, mask=inside), mask=inside)


@triton.jit
def _write_cache_kernel(
    k,  # [T, Hkv, D] any float, strided over T
    v,  # [T, Hkv, D], strided over T
    slots,  # [T] int64
    k_cache,  # [N, Hkv, S, D]
    v_cache,  # [N, Hkv, S, D]
    k_stride,
    v_stride,
    page_rows,  # of D numbers, from one page to the next
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):
    """Copies one head of one token."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, HEAD_BLOCK)
    inside = dims < HEAD_DIM
    slot = tl.load(slots + token)
    if slot >= 0:
        row = slot // PAGE_SIZE * page_rows + head * PAGE_SIZE + slot % PAGE_SIZE
        key = tl.load(k + token * k_stride + head * HEAD_DIM + dims, mask=inside)
        value = tl.load(v + token * v_stride + head * HEAD_DIM + dims, mask=inside)
        tl.store(k_cache + row * HEAD_DIM + dims, key, mask=inside)
        tl.store(v_cache + row * HEAD_DIM + dims, value, mask=inside)


def rope_and_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    plan: RopePlan | None = None,
) -> Tensor:
    """q[T, Hq, D], k[T, Hkv, D], v[T, Hkv, D] -> rotated q; see `kernels.interface.Kernels.rope_and_cache`."""
    T, query_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    assert all(x.stride(2) == 1 and x.stride(1) == head_dim for x in (q, k, v))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _rope_and_cache_kernel[(T, query_heads + kv_heads)](
        q,
        k,
        v,
        cos_sin,
        positions,
        slots,
        k_cache,
        v_cache,
        q_norm,
        k_norm,
        out,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        page_rows(k_cache),
        eps,
        QUERY_HEADS=query_heads,
        HEAD_DIM=head_dim,
        HALF_BLOCK=triton.next_power_of_2(head_dim // 2),
        PAGE_SIZE=k_cache.shape[2],
        Q_NORM=q_norm is not None,
        K_NORM=k_norm is not None,
        num_warps=NUM_WARPS,
    )
    return out


def write_cache(k: Tensor, v: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    """k[T, Hkv, D] and v[T, Hkv, D] into slots[T] int64; -1: do not write."""
    T, kv_heads, head_dim = k.shape
    assert all(x.stride(2) == 1 and x.stride(1) == head_dim for x in (k, v))
    _write_cache_kernel[(T, kv_heads)](
        k,
        v,
        slots,
        k_cache,
        v_cache,
        k.stride(0),
        v.stride(0),
        page_rows(k_cache),
        HEAD_DIM=head_dim,
        HEAD_BLOCK=triton.next_power_of_2(head_dim),
        PAGE_SIZE=k_cache.shape[2],
        num_warps=NUM_WARPS,
    )
