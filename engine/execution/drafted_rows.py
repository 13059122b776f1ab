"""Rows of a step with drafts: which row reads which draft, and which of their tokens count."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from engine.execution.slots import Ints
from engine.scheduling.batch import Batch, Chunk, Sampled

FIRST = -1  # in place of a draft, for the first row of a slot


class SampledRows:
    """Sampled rows of a step in which some slots have drafts.

    slots[R], offsets[R]: slot of each row, and the number of drafts before it. reads: the draft that each row reads,
    FIRST for the last known token; and FIRST once more.
    """

    def __init__(self, batch: Batch) -> None:
        self.slots: Ints = np.array(batch.sampled_rows, np.int64)
        drafted = batch.drafted
        self._num_plain = len(self.slots) - sum([chunk.samples for chunk in drafted])
        self.reads = [FIRST] * self._num_plain
        offsets = [0] * self._num_plain
        for chunk in drafted:
            self.reads += (FIRST, *chunk.drafts)
            offsets += range(chunk.samples)
        self.reads.append(FIRST)
        self.offsets: Ints = np.array(offsets, np.int64)

    def has_drafts(self, row: int) -> bool:
        """Return whether the slot of a row has drafts."""
        return row >= self._num_plain

    def is_right_after(self, row: int, token_id: int) -> bool:
        """Return whether the next row reads `token_id`, which was sampled in `row`."""
        return token_id >= 0 and self.reads[row + 1] == token_id


def accepted(sampled: list[Sampled], drafted: Seq[Chunk]) -> tuple[list[Sampled], dict[int, tuple[Sampled, ...]]]:
    """Return the first token of each sequence, and by its index those after it that count.

    sampled: of all rows; those of chunks with drafts are the last ones. A token counts if all drafts before it are the
    tokens that were sampled there: its row has then read what the next step would read.
    """
    row = len(sampled) - sum([chunk.samples for chunk in drafted])
    first, further = sampled[:row], dict[int, tuple[Sampled, ...]]()
    for chunk in drafted:
        tokens = sampled[row : row + chunk.samples]
        right = 0
        while right < len(chunk.drafts) and _is_right(tokens, chunk.drafts, right):
            right += 1
        if right:
            further[len(first)] = tuple(tokens[1 : 1 + right])
        first.append(tokens[0])
        row += chunk.samples
    return first, further


def _is_right(tokens: list[Sampled], drafts: tuple[int, ...], index: int) -> bool:
    """Return whether a draft is the token that was sampled there. The next step reports the NaN of a draft's row."""
    return tokens[index].token_id == drafts[index] and tokens[index + 1].token_id >= 0
