"""Masks of the tokens that constrained rows may sample, in the form that a step needs."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.execution.slots import Ints
from engine.execution.transfer import to_device
from engine.scheduling.constraint import NO_TOKEN_ALLOWED, Constraint
from kernels.decoder import RowMasks
from kernels.interface import Kernels

NO_DRAFTS: Mapping[int, int] = MappingProxyType({})


class TokenMasks:
    """Collects the masks of one runner's steps."""

    def __init__(self, slots: int, vocab_size: int, device: torch.device) -> None:
        self._num_slots = slots
        self._vocab_size = vocab_size
        self._device = device

    def collect(
        self, constraints: Seq[tuple[int, Constraint]], drafts: Mapping[int, int] = NO_DRAFTS
    ) -> StepMasks | None:
        """Return the masks of (slot, constraint) pairs; None if there are none. The constraints are ready.

        drafts: the number of each slot that has some.
        """
        if not constraints:
            return None
        counts = [1 + drafts.get(slot, 0) for slot, _ in constraints]
        words = np.zeros((sum(counts), -(-self._vocab_size // 32)), np.int32)
        index_of = np.full(self._num_slots, -1, np.int64)
        index = 0
        for (slot, constraint), count in zip(constraints, counts, strict=True):
            constraint.write_masks(words[index].ctypes.data, words[index].nbytes, count)
            index_of[slot] = index
            index += count
        return StepMasks(index_of, words, self._device)


@dataclass(frozen=True, slots=True)
class StepMasks:
    """Masks of the constrained slots of a step.

    index_of: [slots], the index of each slot's first mask, -1 for none; those after its drafts follow. words:
    [N, ceil(V / 32)], a bit for each token. Rows are given by their slots[R] and offsets[R], the number of drafts
    before each; without offsets there are none.
    """

    index_of: Ints
    words: NDArray[np.int32]
    device: torch.device

    def allowed(self, slots: Ints, offsets: Ints | None = None) -> AllowedTokens | None:
        """Return the masks for rows, on the device; None if no row is constrained."""
        rows, words = self._rows(slots, offsets)
        return AllowedTokens(*to_device((rows, words), self.device)) if len(rows) else None

    def row_masks(self, slots: Ints, offsets: Ints | None = None) -> tuple[RowMasks, Ints]:
        """Return the masks for rows, and the constrained rows without an allowed token, which are not among them."""
        rows, words = self._rows(slots, offsets)
        has_tokens = words.any(axis=1)
        return RowMasks(rows[has_tokens], words[has_tokens]), rows[~has_tokens]

    def _rows(self, slots: Ints, offsets: Ints | None) -> tuple[Ints, NDArray[np.int32]]:
        """Return the constrained rows, and their masks."""
        index = self.index_of[slots]
        rows = np.flatnonzero(index >= 0)
        index = index[rows] if offsets is None else index[rows] + offsets[rows]
        return rows, self.words[index]


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """Tokens that some rows may sample, as arguments of `Kernels.mask_logits`.

    rows: [N] int64. masks: [N, ceil(V / 32)] int32.
    """

    rows: Tensor
    masks: Tensor

    def apply(self, logits: Tensor, kernels: Kernels) -> Tensor:
        """Forbid all other tokens in logits[R, V] float32, in place. Returns whether a row has no token left, [N]
        bool; the token that is sampled for such a row does not count.
        """
        return kernels.mask_logits(logits, self.rows, self.masks)

    def mark_empty(self, token_ids: Tensor, is_empty: Tensor) -> Tensor:
        """Return token_ids[R] int64 with `NO_TOKEN_ALLOWED` in rows that have no allowed token."""
        marked = torch.where(is_empty, NO_TOKEN_ALLOWED, token_ids[self.rows])
        return token_ids.index_copy(0, self.rows, marked)
