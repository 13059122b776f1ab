"""Rows of a step with drafts: which row reads which draft, and which of their tokens count."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from engine.execution.slots import Ints
from engine.scheduling.batch import Batch, Chunk, Sampled

FIRST = -1  # in place of a draft, for the first row of a slot


@dataclass(frozen=True, slots=True)
class SampledRows:
    """R sampled rows of a step in which some slots have drafts; the rows of a slot follow one another.

    slots, offsets: [R], slot of each row, and the number of drafts before it. reads: [R], the draft that each row
    reads, FIRST for the last known token.
    """

    slots: Ints
    offsets: Ints
    reads: Ints

    @classmethod
    def of(cls, batch: Batch) -> SampledRows:
        """Return the rows of a batch, those of chunks with drafts last."""
        slots = np.array(batch.sampled_rows, np.int64)
        drafted = batch.drafted
        num_plain = len(slots) - sum([chunk.samples for chunk in drafted])
        reads, offsets = [FIRST] * num_plain, [0] * num_plain
        for chunk in drafted:
            reads += (FIRST, *chunk.drafts)
            offsets += range(chunk.samples)
        return cls(slots, np.array(offsets, np.int64), np.array(reads, np.int64))

    def select(self, rows: Ints | slice) -> SampledRows:
        """Return some of the rows, all or none of each slot."""
        return SampledRows(self.slots[rows], self.offsets[rows], self.reads[rows])

    def drafts_before(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the drafts before each of rows[N]: pairs of an index in `rows` and a token."""
        index = np.repeat(np.arange(len(rows)), self.offsets[rows])
        reading = [np.arange(row - offset, row) + 1 for row, offset in zip(rows, self.offsets[rows], strict=True)]
        return index, self.reads[np.concatenate(reading)]


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
