"""QK-norm, rotary embedding and the write to the paged cache in one kernel. One program per token: its heads share the
angles, and are enough for whole words to be read and written.
"""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.early import early, take_turn
from kernels.paging import page_rows
from kernels.plans import RopePlan

NUM_WARPS = 4
NUM_WARPS_OF_HEAD = 1  # at most a few hundred values


@triton.jit
def _rotated(
    source,  # [heads, D] of one token
    cos,  # [HALF_BLOCK] float32
    sin,  # [HALF_BLOCK] float32
    weight,  # [D], read when NORM
    eps,
    HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    NORM: tl.constexpr,
):
    """Both halves of its heads, [HEADS_BLOCK, HALF_BLOCK] float32 each, through the norm of a head and rotated; their
    places behind the token's first number; and which of them there are.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    halves = tl.arange(0, HALF_BLOCK)
    heads = tl.arange(0, HEADS_BLOCK)
    places = heads[:, None] * HEAD_DIM + halves[None, :]
    inside = (heads < HEADS)[:, None] & (halves < HALF)[None, :]
    first = tl.load(source + places, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + places, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        square_sums = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        scales = tl.rsqrt(square_sums / HEAD_DIM + eps)[:, None]
        first *= scales * tl.load(weight + halves, mask=halves < HALF, other=0.0).to(tl.float32)[None, :]
        second *= scales * tl.load(weight + HALF + halves, mask=halves < HALF, other=0.0).to(tl.float32)[None, :]
    turned_first = first * cos[None, :] - second * sin[None, :]
    turned_second = second * cos[None, :] + first * sin[None, :]
    return turned_first, turned_second, places, inside


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
    QUERY_BLOCK: tl.constexpr,  # Hq rounded up to a power of two
    KV_HEADS: tl.constexpr,
    KV_BLOCK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF_BLOCK: tl.constexpr,  # D / 2 rounded up to a power of two
    PAGE_SIZE: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Rotates the query heads of one token, rotates its key heads and stores them with its value heads."""
    take_turn(EARLY)
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    halves = tl.arange(0, HALF_BLOCK)
    table = cos_sin + tl.load(positions + token) * HEAD_DIM
    cos = tl.load(table + halves, mask=halves < HALF, other=0.0)
    sin = tl.load(table + HALF + halves, mask=halves < HALF, other=0.0)
    first, second, query_places, query_inside = _rotated(
        q + token * q_stride, cos, sin, q_norm, eps, QUERY_HEADS, QUERY_BLOCK, HEAD_DIM, HALF_BLOCK, Q_NORM
    )
    target = q_out + token * QUERY_HEADS * HEAD_DIM + query_places
    tl.store(target, first.to(q_out.dtype.element_ty), mask=query_inside)
    tl.store(target + HALF, second.to(q_out.dtype.element_ty), mask=query_inside)
    slot = tl.load(slots + token)
    if slot >= 0:
        key_first, key_second, places, inside = _rotated(
            k + token * k_stride, cos, sin, k_norm, eps, KV_HEADS, KV_BLOCK, HEAD_DIM, HALF_BLOCK, K_NORM
        )
        value = v + token * v_stride + places
        rows = slot // PAGE_SIZE * page_rows + tl.arange(0, KV_BLOCK) * PAGE_SIZE + slot % PAGE_SIZE
        cached = rows[:, None] * HEAD_DIM + halves[None, :]
        tl.store(k_cache + cached, key_first.to(k_cache.dtype.element_ty), mask=inside)
        tl.store(k_cache + cached + HALF, key_second.to(k_cache.dtype.element_ty), mask=inside)
        tl.store(v_cache + cached, tl.load(value, mask=inside), mask=inside)
        tl.store(v_cache + cached + HALF, tl.load(value + HALF, mask=inside), mask=inside)


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
    _rope_and_cache_kernel[(T,)](
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
        QUERY_BLOCK=triton.next_power_of_2(query_heads),
        KV_HEADS=kv_heads,
        KV_BLOCK=triton.next_power_of_2(kv_heads),
        HEAD_DIM=head_dim,
        HALF_BLOCK=triton.next_power_of_2(head_dim // 2),
        PAGE_SIZE=k_cache.shape[2],
        Q_NORM=q_norm is not None,
        K_NORM=k_norm is not None,
        num_warps=NUM_WARPS,
        **early(q.device),
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
        num_warps=NUM_WARPS_OF_HEAD,
    )
