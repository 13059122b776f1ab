"""Masks of the tokens that constrained rows may sample, computed in threads during the forward pass."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.execution.slots import Ints
from engine.execution.transfer import to_device
from engine.host import num_cores
from engine.scheduling.constraint import NO_TOKEN_ALLOWED, Constraint
from kernels.interface import Kernels

ROWS_PER_TASK = 8  # a mask takes 10 to 50 us, and starting a task as much
MAX_THREADS = 8


class TokenMasks:
    """Threads that compute masks for one runner."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._threads: ThreadPoolExecutor | None = None  # started for the first constrained request

    def start(self, constraints: Seq[tuple[int, Constraint]]) -> PendingMasks:
        """Begin to compute the masks of (slot, constraint) pairs; at least one."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(min(MAX_THREADS, num_cores()), "masks")
        words = np.zeros((len(constraints), -(-self._vocab_size // 32)), np.int32)
        slots = np.array([slot for slot, _ in constraints], np.int64)
        parts = [slice(first, first + ROWS_PER_TASK) for first in range(0, len(constraints), ROWS_PER_TASK)]
        tasks = [self._threads.submit(_write, words[part], constraints[part]) for part in parts]
        return PendingMasks(slots, words, tasks, self._device)


def _write(words: NDArray[np.int32], constraints: Seq[tuple[int, Constraint]]) -> None:
    for row, (_, constraint) in zip(words, constraints, strict=True):
        constraint.write_mask(row.ctypes.data, row.nbytes)


@dataclass(frozen=True, slots=True)
class PendingMasks:
    """Masks of the constrained slots[N], in the making. words: [N, ceil(V / 32)], a bit for each token."""

    slots: Ints
    words: NDArray[np.int32]
    tasks: Seq[Future[None]]
    device: torch.device

    def rows_of(self, slots: Ints) -> Ints:
        """Return the rows of slots[R] that are constrained, in order."""
        return np.flatnonzero(np.isin(slots, self.slots))

    def wait(self, slots: Ints) -> AllowedTokens | None:
        """Return the masks for the rows of slots[R], once they are computed; None if no row is constrained."""
        rows, words = self._computed(slots)
        return AllowedTokens(*to_device((rows, words), self.device)) if len(rows) else None

    def wait_slots(self, slots: Ints) -> tuple[tuple[Tensor, Tensor], Ints]:
        """Return the constrained slots among slots[R] with their masks, on the device: [N] int64 and
        [N, ceil(V / 32)] int32; and the rows without an allowed token, which are not among them.
        """
        rows, words = self._computed(slots)
        has_tokens = words.any(axis=1)
        found = to_device((slots[rows[has_tokens]], words[has_tokens]), self.device)
        return (found[0], found[1]), rows[~has_tokens]

    def _computed(self, slots: Ints) -> tuple[Ints, NDArray[np.int32]]:
        """Return the constrained rows of slots[R] and their masks, once they are computed."""
        for task in self.tasks:
            task.result()
        rows = self.rows_of(slots)
        order = {slot: index for index, slot in enumerate(self.slots.tolist())}
        return rows, self.words[[order[slot] for slot in slots[rows].tolist()]]


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
