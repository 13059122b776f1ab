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
        words = np.zeros((len(constraints), -(-self._vocab_size // 32)), np.uint32)
        slots = np.array([slot for slot, _ in constraints], np.int64)
        parts = [slice(first, first + ROWS_PER_TASK) for first in range(0, len(constraints), ROWS_PER_TASK)]
        tasks = [self._threads.submit(_write, words[part], constraints[part]) for part in parts]
        return PendingMasks(slots, words, tasks, self._vocab_size, self._device)


def _write(words: NDArray[np.uint32], constraints: Seq[tuple[int, Constraint]]) -> None:
    for row, (_, constraint) in zip(words, constraints, strict=True):
        constraint.write_mask(row.ctypes.data, row.nbytes)


@dataclass(frozen=True, slots=True)
class PendingMasks:
    """Masks of the constrained slots[N], in the making. words: [N, ceil(V / 32)], a bit for each token."""

    slots: Ints
    words: NDArray[np.uint32]
    tasks: Seq[Future[None]]
    vocab_size: int
    device: torch.device

    def rows_of(self, slots: Ints) -> Ints:
        """Return the rows of slots[R] that are constrained, in order."""
        return np.flatnonzero(np.isin(slots, self.slots))

    def wait(self, slots: Ints) -> AllowedTokens | None:
        """Return the masks for the rows of slots[R], once they are computed; None if no row is constrained."""
        for task in self.tasks:
            task.result()
        rows = self.rows_of(slots)
        if not len(rows):
            return None
        order = {slot: index for index, slot in enumerate(self.slots.tolist())}
        words = self.words[[order[slot] for slot in slots[rows].tolist()]]
        if self.device.type == "cpu":
            bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : self.vocab_size]
            return AllowedTokens(torch.from_numpy(rows), torch.from_numpy(bits.view(np.bool_)))
        index, packed = to_device((rows, words.view(np.int32)), self.device)
        bits_of_word = torch.arange(32, dtype=torch.int32, device=self.device)
        expanded = (packed.unsqueeze(2) >> bits_of_word) & 1
        return AllowedTokens(index, expanded.flatten(1)[:, : self.vocab_size].bool())


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """Tokens that some of R rows may sample. rows: [N] int64; mask: [N, V] bool."""

    rows: Tensor
    mask: Tensor

    def apply(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits[R, V] of any float dtype without the other tokens, in float32, and whether a row has no token
        left ([N] bool). Such a row keeps finite logits; its sampled token does not count.
        """
        logits = logits.to(torch.float32)
        masked = logits[self.rows].masked_fill_(~self.mask, -torch.inf)
        is_empty = masked.amax(dim=1) == -torch.inf
        masked.masked_fill_(is_empty.unsqueeze(1), 0.0)
        return logits.index_copy(0, self.rows, masked), is_empty

    def mark_empty(self, token_ids: Tensor, is_empty: Tensor) -> Tensor:
        """Return token_ids[R] int64 with `NO_TOKEN_ALLOWED` in rows that have no allowed token."""
        marked = torch.where(is_empty, NO_TOKEN_ALLOWED, token_ids[self.rows])
        return token_ids.index_copy(0, self.rows, marked)
