"""Plans: per-step data that all layers reuse. Opaque to callers: built by `plan_*` and passed back to the operation.

A small model on a CPU is bound by the number of dispatched operations, and index arithmetic is the same in all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RopePlan:
    """Rotations and cache rows of one step.

    cos, sin: [T, 1, R] in the dtype of the cache, both halves filled, the first half of `sin` negated.
    rows: [T', Hkv] int64 into the cache viewed as [N * Hkv * S, D], for the tokens that are written.
    kept: [T'] int64, the tokens that are written; None if all are.
    """

    cos: Tensor
    sin: Tensor
    rows: Tensor
    kept: Tensor | None


@dataclass(frozen=True, slots=True)
class RopeInputs:
    """Inputs of `rope_and_cache` besides the heads and the cache.

    cos_sin: [max_pos, R] float32, first half cosines, second half sines, in the "rotate half" convention. The first R
    dimensions of a head are rotated, the others are kept; R = 0 rotates none.
    positions: [T] int64. slot_mapping: [T] int64, positions in the cache, -1: do not write.
    q_norm, k_norm: [D], RMSNorm weights applied to each head before the rotation (Qwen3), or None. The
    Triton kernel has them for R = D only.
    plan: the result of `plan_rope` with the same inputs, or None.
    """

    cos_sin: Tensor
    positions: Tensor
    slot_mapping: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float
    plan: RopePlan | None = None


@dataclass(frozen=True)
class DecodeGroup:
    """Decode rows of similar length that are computed together, padded to the longest.

    first, last: the group's range in the plan's ordered rows.
    key_rows: [b * Hkv * pages] int32 into the cache viewed as [N * Hkv, S * D].
    hidden: [b, 1, 1, L] bool, masked positions.
    value_rows: [b * Hkv * L] int32 into the cache viewed as [N * Hkv * S, D].
    """

    first: int
    last: int
    key_rows: Tensor
    hidden: Tensor
    value_rows: Tensor


class DecodePlan:
    """Base class for plans of a step's decode rows. The contents are private to the back end."""


@dataclass(frozen=True)
class GroupedDecodePlan(DecodePlan):
    """Groups in ascending length.

    order, restore: [B] int64, the permutation to sorted order and its inverse; None for the identity.
    """

    groups: tuple[DecodeGroup, ...]
    order: Tensor | None
    restore: Tensor | None


@dataclass(frozen=True)
class DecodeTilePlan(DecodePlan):
    """Decode rows as prefill tiles.

    tiles: [B, 4] int32, each row as a chunk of one query (see `kernels.query_tiles`), or of none without a context.
    """

    tiles: Tensor


@dataclass(frozen=True)
class SplitDecodePlan(DecodePlan):
    """Splits of all contexts, for every key/value head.

    tasks: [5, B * splits] int32: row, split, first visible position, context length and split size of each task.
    num_tasks: [1] int32, number of tasks.
    arrived: [B, Hkv] int32 zeros: number of reduced splits per row and key/value head. Each layer restores the zeros.
    splits: maximum number of splits of a row. has_blocks: whether a split can exceed one block.
    """

    tasks: Tensor
    num_tasks: Tensor
    arrived: Tensor
    splits: int
    has_blocks: bool
