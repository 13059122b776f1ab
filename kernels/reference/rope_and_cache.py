"""Rotary position embedding (Su et al., 2021) in the "rotate half" convention, and the write to the KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.paging import page_stride_rows, view_as_rows
from kernels.plans import RopePlan
from kernels.reference.rms_norm import rms_norm


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
    """Rotate q[T, Hq, D] and k[T, Hkv, D], cache k and v[T, Hkv, D], and return the rotated q[T, Hq, D].

    See `kernels.interface.Kernels.rope_and_cache`.
    """
    plan = plan or plan_rope(cos_sin, positions, slots, k_cache)
    if q_norm is not None:
        q = rms_norm(q, q_norm, eps)
    if k_norm is not None:
        k = rms_norm(k, k_norm, eps)
    if q_norm is None and k_norm is None and _adjacent(q, k):
        # q and k are adjacent in a fused projection, so one rotation handles both.
        query_heads, heads = q.shape[1], q.shape[1] + k.shape[1]
        both = _rotate(q.as_strided((q.shape[0], heads, q.shape[2]), q.stride()), plan)
        q, k = both[:, :query_heads], both[:, query_heads:]
    else:
        q, k = _rotate(q, plan), _rotate(k, plan)
    _write(k, k_cache, plan.rows, plan.kept)
    _write(v, v_cache, plan.rows, plan.kept)
    return q


def write_cache(k: Tensor, v: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    """Write k[T, Hkv, D] and v[T, Hkv, D] to the cache positions slots[T] int64; -1 skips a token."""
    rows, kept = _cache_rows(slots, k_cache)
    _write(k, k_cache, rows, kept)
    _write(v, v_cache, rows, kept)


def plan_rope(cos_sin: Tensor, positions: Tensor, slots: Tensor, k_cache: Tensor) -> RopePlan:
    """Return the part of `rope_and_cache` shared by all layers: cos_sin[max_pos, D] float32, positions[T], slots[T]."""
    cos, sin = cos_sin.index_select(0, positions).to(k_cache.dtype).unsqueeze(1).chunk(2, dim=-1)
    rows, kept = _cache_rows(slots, k_cache)
    return RopePlan(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1), rows, kept)


def _cache_rows(slots: Tensor, cache: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return rows[T', Hkv] of the cache viewed as rows of D values, and the indices of those tokens (None: all)."""
    _, heads, page_size, _ = cache.shape
    kept = None
    if bool((slots < 0).any()):
        kept = (slots >= 0).nonzero().squeeze(1)
        slots = slots.index_select(0, kept)
    pages = slots.div(page_size, rounding_mode="floor")
    first = pages * page_stride_rows(cache) + slots % page_size  # row of head 0
    return first.unsqueeze(1) + torch.arange(0, heads * page_size, page_size, device=slots.device), kept


def _rotate(x: Tensor, plan: RopePlan) -> Tensor:
    """Compute x * cos + rotate_half(x) * sin for x[T, heads, D]."""
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
