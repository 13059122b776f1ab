"""What a step computes once and every layer reuses. Opaque to callers: built by `plan_*`, handed back to the operation.

A small model on a CPU is bound by the number of dispatched operations, and index arithmetic is the same in all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RopePlan:
    """Rotations and cache rows of one step.

    cos, sin: [T, 1, D] in the dtype of the cache, both halves filled, the first half of `sin` negated.
    rows: [T', Hkv] int64 into the cache seen as [N * Hkv * S, D], for the tokens that are written.
    kept: [T'] int64, the tokens that are written; None when all are.
    """

    cos: Tensor
    sin: Tensor
    rows: Tensor
    kept: Tensor | None


@dataclass(frozen=True)
class DecodeGroup:
    """Decode rows of similar length that are computed together, padded to the longest of them.

    first, last: the group's rows among the plan's ordered rows.
    key_rows: [b * Hkv * pages] int32 into the cache seen as [N * Hkv, S * D].
    hidden: [b, 1, 1, L] bool, positions that are not attended to.
    value_rows: [b * Hkv * L] int32 into the cache seen as [N * Hkv * S, D].
    """

    first: int
    last: int
    key_rows: Tensor
    hidden: Tensor
    value_rows: Tensor


class DecodePlan:
    """Of the decode rows of a step. What is in it is its back end's own affair."""


@dataclass(frozen=True)
class DecodeGroups(DecodePlan):
    """Groups in ascending length. order and restore: [B] int64 permutations there and back; None when they change
    nothing.
    """

    groups: tuple[DecodeGroup, ...]
    order: Tensor | None
    restore: Tensor | None


@dataclass(frozen=True)
class DecodeTiles(DecodePlan):
    """tiles[B, 4] int32: each row as a chunk of one query, see `kernels.query_tiles`; of none without a context."""

    tiles: Tensor


@dataclass(frozen=True)
class DecodeTasks(DecodePlan):
    """The splits of all contexts, for every key/value head.

    tasks: [5, B * splits] int32, of each the row, the split, the first position that is seen, the context and the size
    of a split; num_tasks: [1] int32, how many there are.
    arrived: [B, Hkv] int32 zeros: of a row and key/value head, how many splits are reduced. Each layer leaves zeros
    behind.
    splits: the most that a row can have. has_blocks: whether one can be more than one block.
    """

    tasks: Tensor
    num_tasks: Tensor
    arrived: Tensor
    splits: int
    has_blocks: bool
