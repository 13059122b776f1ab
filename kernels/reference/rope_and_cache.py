"""Rotary position embedding (Su et al., 2021) in the "rotate half" convention, and the write to the KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.paging import PagedKV, view_as_rows
from kernels.plans import RopeInputs, RopePlan
from kernels.reference.rms_norm import rms_norm


def rope_and_cache(q: Tensor, k: Tensor, v: Tensor, kv: PagedKV, rope: RopeInputs) -> Tensor:
    """Rotate q[T, Hq, D] and k[T, Hkv, D], cache k and v[T, Hkv, D], and return the rotated q[T, Hq, D].

    See `kernels.interface.Kernels.rope_and_cache`.
    """
    plan = rope.plan or plan_rope(rope.cos_sin, rope.positions, rope.slot_mapping, kv)
    if rope.q_norm is not None:
        q = rms_norm(q, rope.q_norm, rope.eps)
    if rope.k_norm is not None:
        k = rms_norm(k, rope.k_norm, rope.eps)
    if rope.q_norm is None and rope.k_norm is None and _adjacent(q, k):
        # q and k are adjacent in a fused projection, so one rotation handles both.
        query_heads, heads = q.shape[1], q.shape[1] + k.shape[1]
        both = _rotate(q.as_strided((q.shape[0], heads, q.shape[2]), q.stride()), plan)
        q, k = both[:, :query_heads], both[:, query_heads:]
    else:
        q, k = _rotate(q, plan), _rotate(k, plan)
    _write(k, kv.k, plan.rows, plan.kept)
    _write(v, kv.v, plan.rows, plan.kept)
    return q


def write_cache(k: Tensor, v: Tensor, slot_mapping: Tensor, kv: PagedKV) -> None:
    """Write k[T, Hkv, D] and v[T, Hkv, D] to the cache positions slot_mapping[T] int64; -1 skips a token."""
    rows, kept = _cache_rows(slot_mapping, kv)
    _write(k, kv.k, rows, kept)
    _write(v, kv.v, rows, kept)


def plan_rope(cos_sin: Tensor, positions: Tensor, slot_mapping: Tensor, kv: PagedKV) -> RopePlan:
    """Return the part of `rope_and_cache` shared by all layers; see `kernels.plans.RopeInputs`."""
    cos, sin = cos_sin.index_select(0, positions).to(kv.dtype).unsqueeze(1).chunk(2, dim=-1)
    rows, kept = _cache_rows(slot_mapping, kv)
    return RopePlan(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1), rows, kept)


def _cache_rows(slot_mapping: Tensor, kv: PagedKV) -> tuple[Tensor, Tensor | None]:
    """Return rows[T', Hkv] of the cache viewed as rows of D values, and the indices of those tokens (None: all)."""
    page_size, kept = kv.page_size, None
    if bool((slot_mapping < 0).any()):
        kept = (slot_mapping >= 0).nonzero().squeeze(1)
        slot_mapping = slot_mapping.index_select(0, kept)
    pages = slot_mapping.div(page_size, rounding_mode="floor")
    first = pages * kv.page_stride_rows + slot_mapping % page_size  # row of head 0
    return first.unsqueeze(1) + torch.arange(0, kv.heads * page_size, page_size, device=pages.device), kept


def _rotate(x: Tensor, plan: RopePlan) -> Tensor:
    """Compute x * cos + rotate_half(x) * sin for the first dimensions of x[T, heads, D] that the plan covers."""
    size = plan.cos.shape[-1]
    if size == 0:
        return x
    if size < x.shape[-1]:
        return torch.cat((_rotate(x[..., :size], plan), x[..., size:]), dim=-1)
    # Rolling by half a head swaps its halves; plan.sin already includes the sign of "rotate half".
    return (x * plan.cos).addcmul_(x.roll(x.shape[-1] // 2, -1), plan.sin)


def _adjacent(q: Tensor, k: Tensor) -> bool:
    """Return whether k directly follows q in memory for every token, head by head."""
    offset = q.storage_offset() + q.shape[1] * q.shape[2]
    same_storage = q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    return same_storage and q.stride() == k.stride() and k.storage_offset() == offset and q.stride(1) == q.shape[2]


def _write(x: Tensor, cache: Tensor, rows: Tensor, kept: Tensor | None) -> None:
    """Write x[T, Hkv, D] to rows[T', Hkv] of the cache [N, Hkv, S, D]."""
    if kept is not None:
        x = x.index_select(0, kept)
    view_as_rows(cache, cache.shape[-1]).index_put_((rows,), x)
