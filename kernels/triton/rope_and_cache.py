"""QK-norm, rotary embedding and the write to the paged cache in one kernel.

One program per token: its heads share the angles and suffice for wide loads and stores.
"""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.paging import PagedKV
from kernels.plans import RopeInputs
from kernels.triton.pdl import pdl_options

NUM_WARPS = 4
NUM_WARPS_OF_HEAD = 1  # a head has at most a few hundred values


@triton.jit
def _halves(
    vector,  # [D]
    HEAD_DIM: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    """Return both halves of a vector, [HALF_BLOCK] float32 each."""
    HALF: tl.constexpr = HEAD_DIM // 2
    halves = tl.arange(0, HALF_BLOCK)
    first = tl.load(vector + halves, mask=halves < HALF, other=0.0).to(tl.float32)
    second = tl.load(vector + HALF + halves, mask=halves < HALF, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _rotated(
    first,  # [heads, HALF_BLOCK] any float
    second,  # like `first`
    cos,  # [HALF_BLOCK] float32, like the next three
    sin,
    first_gain,
    second_gain,
    eps,
    HEAD_DIM: tl.constexpr,
    NORM: tl.constexpr,
):
    """Return both halves of the heads in float32, normalised per head (with NORM) and rotated."""
    first, second = first.to(tl.float32), second.to(tl.float32)
    if NORM:
        square_sums = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        scales = tl.rsqrt(square_sums / HEAD_DIM + eps)[:, None]
        first *= scales * first_gain[None, :]
        second *= scales * second_gain[None, :]
    return first * cos[None, :] - second * sin[None, :], second * cos[None, :] + first * sin[None, :]


@triton.jit
def _copy_kept(
    source,  # [heads] pointers to the first value of each head
    target,  # like `source`
    inside,  # [heads] bool
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    KEPT_BLOCK: tl.constexpr,
):
    """Copy the dimensions of heads that are not rotated."""
    kept = ROTARY_DIM + tl.arange(0, KEPT_BLOCK)
    mask = inside[:, None] & (kept < HEAD_DIM)[None, :]
    tl.store(target[:, None] + kept[None, :], tl.load(source[:, None] + kept[None, :], mask=mask), mask=mask)


@triton.jit
def _rope_and_cache_kernel(
    q,  # [T, Hq, D] any float, strided over T
    k,  # [T, Hkv, D], strided over T
    v,  # [T, Hkv, D], strided over T
    cos_sin,  # [max_pos, R] float32
    positions,  # [T] int64
    slot_mapping,  # [T] int64
    k_cache,  # [N, Hkv, S, D]
    v_cache,  # [N, Hkv, S, D]
    q_norm,  # [D], read when Q_NORM
    k_norm,  # [D], read when K_NORM
    q_out,  # [T, Hq, D]
    q_stride,
    k_stride,
    v_stride,
    page_rows,  # rows of D values from one page to the next
    eps,
    QUERY_HEADS: tl.constexpr,
    QUERY_BLOCK: tl.constexpr,  # Hq rounded up to a power of two
    KV_HEADS: tl.constexpr,
    KV_BLOCK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,  # R, equal to D with a norm
    HALF_BLOCK: tl.constexpr,  # R / 2 rounded up to a power of two
    KEPT_BLOCK: tl.constexpr,  # D - R rounded up to a power of two
    PAGE_SIZE: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Rotate the query and key heads of one token, and store its keys and values in the cache.

    A single program cannot hide latency behind others. So it reads the step's inputs before its turn (early launch),
    and loads everything of the token before it stores anything.
    """
    HALF: tl.constexpr = ROTARY_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
    slot = tl.load(slot_mapping + token)
    cos, sin = _halves(cos_sin + tl.load(positions + token) * ROTARY_DIM, ROTARY_DIM, HALF_BLOCK)
    q_gain, q_second_gain = cos, sin  # placeholders, unused without a norm
    k_gain, k_second_gain = cos, sin
    if Q_NORM:
        q_gain, q_second_gain = _halves(q_norm, HEAD_DIM, HALF_BLOCK)
    if K_NORM:
        k_gain, k_second_gain = _halves(k_norm, HEAD_DIM, HALF_BLOCK)
    if USE_PDL:
        tl.extra.cuda.gdc_wait()
    halves, heads, kv_heads = tl.arange(0, HALF_BLOCK), tl.arange(0, QUERY_BLOCK), tl.arange(0, KV_BLOCK)
    query_inside = (heads < QUERY_HEADS)[:, None] & (halves < HALF)[None, :]
    inside = (kv_heads < KV_HEADS)[:, None] & (halves < HALF)[None, :]
    query_offsets = heads[:, None] * HEAD_DIM + halves[None, :]
    kv_offsets = kv_heads[:, None] * HEAD_DIM + halves[None, :]
    query, key, value = (
        q + token * q_stride + query_offsets,
        k + token * k_stride + kv_offsets,
        v + token * v_stride + kv_offsets,
    )
    first, second = tl.load(query, mask=query_inside, other=0.0), tl.load(query + HALF, mask=query_inside, other=0.0)
    key_first, key_second = tl.load(key, mask=inside, other=0.0), tl.load(key + HALF, mask=inside, other=0.0)
    value_first, value_second = tl.load(value, mask=inside, other=0.0), tl.load(value + HALF, mask=inside, other=0.0)
    first, second = _rotated(first, second, cos, sin, q_gain, q_second_gain, eps, HEAD_DIM, Q_NORM)
    target = q_out + token * QUERY_HEADS * HEAD_DIM + query_offsets
    tl.store(target, first.to(q_out.dtype.element_ty), mask=query_inside)
    tl.store(target + HALF, second.to(q_out.dtype.element_ty), mask=query_inside)
    if slot >= 0:
        key_first_out, key_second_out = _rotated(
            key_first, key_second, cos, sin, k_gain, k_second_gain, eps, HEAD_DIM, K_NORM
        )
        rows = slot // PAGE_SIZE * page_rows + kv_heads * PAGE_SIZE + slot % PAGE_SIZE
        cached = rows[:, None] * HEAD_DIM + halves[None, :]
        tl.store(k_cache + cached, key_first_out.to(k_cache.dtype.element_ty), mask=inside)
        tl.store(k_cache + cached + HALF, key_second_out.to(k_cache.dtype.element_ty), mask=inside)
        tl.store(v_cache + cached, value_first, mask=inside)
        tl.store(v_cache + cached + HALF, value_second, mask=inside)
    if ROTARY_DIM < HEAD_DIM:
        target = q_out + (token * QUERY_HEADS + heads) * HEAD_DIM
        source = q + token * q_stride + heads * HEAD_DIM
        _copy_kept(source, target, heads < QUERY_HEADS, HEAD_DIM, ROTARY_DIM, KEPT_BLOCK)
        if slot >= 0:
            heads_inside = kv_heads < KV_HEADS
            row = (slot // PAGE_SIZE * page_rows + kv_heads * PAGE_SIZE + slot % PAGE_SIZE) * HEAD_DIM
            key_heads, value_heads = token * k_stride + kv_heads * HEAD_DIM, token * v_stride + kv_heads * HEAD_DIM
            _copy_kept(k + key_heads, k_cache + row, heads_inside, HEAD_DIM, ROTARY_DIM, KEPT_BLOCK)
            _copy_kept(v + value_heads, v_cache + row, heads_inside, HEAD_DIM, ROTARY_DIM, KEPT_BLOCK)


@triton.jit
def _write_cache_kernel(
    k,  # [T, Hkv, D] any float, strided over T
    v,  # [T, Hkv, D], strided over T
    slot_mapping,  # [T] int64
    k_cache,  # [N, Hkv, S, D]
    v_cache,  # [N, Hkv, S, D]
    k_stride,
    v_stride,
    page_rows,  # rows of D values from one page to the next
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):
    """Copy one key head and one value head of one token to the cache."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, HEAD_BLOCK)
    inside = dims < HEAD_DIM
    slot = tl.load(slot_mapping + token)
    if slot >= 0:
        row = slot // PAGE_SIZE * page_rows + head * PAGE_SIZE + slot % PAGE_SIZE
        key = tl.load(k + token * k_stride + head * HEAD_DIM + dims, mask=inside)
        value = tl.load(v + token * v_stride + head * HEAD_DIM + dims, mask=inside)
        tl.store(k_cache + row * HEAD_DIM + dims, key, mask=inside)
        tl.store(v_cache + row * HEAD_DIM + dims, value, mask=inside)


def rope_and_cache(q: Tensor, k: Tensor, v: Tensor, kv: PagedKV, rope: RopeInputs) -> Tensor:
    """Rotate q[T, Hq, D] and k[T, Hkv, D], cache k and v[T, Hkv, D], and return the rotated q[T, Hq, D].

    See `kernels.interface.Kernels.rope_and_cache`.
    """
    T, query_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    rotary_dim = rope.cos_sin.shape[1]
    assert all(x.stride(2) == 1 and x.stride(1) == head_dim for x in (q, k, v))
    assert rotary_dim == head_dim or rope.q_norm is rope.k_norm is None
    if rotary_dim == 0:
        write_cache(k, v, rope.slot_mapping, kv)
        return q.contiguous()
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _rope_and_cache_kernel[(T,)](
        q,
        k,
        v,
        rope.cos_sin,
        rope.positions,
        rope.slot_mapping,
        kv.k,
        kv.v,
        rope.q_norm,
        rope.k_norm,
        out,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        kv.page_stride_rows,
        rope.eps,
        QUERY_HEADS=query_heads,
        QUERY_BLOCK=triton.next_power_of_2(query_heads),
        KV_HEADS=kv_heads,
        KV_BLOCK=triton.next_power_of_2(kv_heads),
        HEAD_DIM=head_dim,
        ROTARY_DIM=rotary_dim,
        HALF_BLOCK=triton.next_power_of_2(rotary_dim // 2),
        KEPT_BLOCK=triton.next_power_of_2(max(1, head_dim - rotary_dim)),
        PAGE_SIZE=kv.page_size,
        Q_NORM=rope.q_norm is not None,
        K_NORM=rope.k_norm is not None,
        num_warps=NUM_WARPS,
        **pdl_options(q.device),
    )
    return out


def write_cache(k: Tensor, v: Tensor, slot_mapping: Tensor, kv: PagedKV) -> None:
    """Write k[T, Hkv, D] and v[T, Hkv, D] to the cache positions slot_mapping[T] int64; -1 skips a token."""
    T, kv_heads, head_dim = k.shape
    assert all(x.stride(2) == 1 and x.stride(1) == head_dim for x in (k, v))
    _write_cache_kernel[(T, kv_heads)](
        k,
        v,
        slot_mapping,
        kv.k,
        kv.v,
        k.stride(0),
        v.stride(0),
        kv.page_stride_rows,
        HEAD_DIM=head_dim,
        HEAD_BLOCK=triton.next_power_of_2(head_dim),
        PAGE_SIZE=kv.page_size,
        num_warps=NUM_WARPS_OF_HEAD,
    )
