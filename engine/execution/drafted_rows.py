"""Rows of a step with drafts: which row reads which draft, and which of their tokens count."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from engine.drafting.lookup import Draft
from engine.execution.slots import Ints
from engine.scheduling.batch import Batch, Chunk, Sampled
from kernels.slots import NO_DRAFT_TOKEN

FIRST = -1  # in place of a draft, for the first row of a slot


@dataclass(frozen=True, slots=True)
class SampledRows:
    """R sampled rows of a step in which some slots have drafts; the rows of a slot follow one another.

    slots, offsets: [R], slot of each row, and the number of drafts before it. reads: [R], the draft that each row
    reads, FIRST for the last known token, NO_DRAFT_TOKEN if the step looks it up. lookups: [R], how many drafts are
    looked up for the slot of a first row.
    """

    slots: Ints
    offsets: Ints
    reads: Ints
    lookups: Ints

    @classmethod
    def of(cls, batch: Batch) -> SampledRows:
        """Return the rows of a batch, those of chunks with drafts last."""
        slots = np.array(batch.sampled_rows, np.int64)
        drafted = batch.drafted
        num_plain = len(slots) - sum([chunk.samples for chunk in drafted])
        reads, offsets, lookups = [FIRST] * num_plain, [0] * num_plain, [0] * num_plain
        for chunk in drafted:
            reads += (FIRST, *(chunk.drafts or (NO_DRAFT_TOKEN,) * chunk.num_drafts))
            offsets += range(chunk.samples)
            lookups += (0 if chunk.drafts else chunk.num_drafts, *(0,) * chunk.num_drafts)
        return cls(slots, *(np.array(column, np.int64) for column in (offsets, reads, lookups)))

    def select(self, rows: Ints | slice) -> SampledRows:
        """Return some of the rows, all or none of each slot."""
        return SampledRows(self.slots[rows], self.offsets[rows], self.reads[rows], self.lookups[rows])

    def without_drafts_from(self, rows: Ints) -> SampledRows:
        """Return the rows without the drafts that rows[N] and those after them in their slots read."""
        if not len(rows):
            return self
        slots, offsets = self.slots[rows], self.offsets[rows]
        is_same = self.slots == slots[:, None]
        is_cut = (is_same & (self.offsets >= np.maximum(offsets, 1)[:, None])).any(axis=0)
        return replace(self, reads=np.where(is_cut, NO_DRAFT_TOKEN, self.reads))

    def drafts_before(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the drafts before each of rows[N]: pairs of an index in `rows` and a token."""
        index = np.repeat(np.arange(len(rows)), self.offsets[rows])
        reading = [np.arange(row - offset, row) + 1 for row, offset in zip(rows, self.offsets[rows], strict=True)]
        return index, self.reads[np.concatenate(reading)]


def with_lookups(
    drafted: tuple[Chunk, ...], reads: Seq[int], matches: Seq[int]
) -> tuple[tuple[Chunk, ...], dict[int, Draft]]:
    """Return the chunks with the drafts that their rows have read, and those that were looked up by index.

    reads, matches: of all rows; those of the chunks are the last ones.
    """
    chunks, looked_up = list[Chunk](), dict[int, Draft]()
    row = len(reads) - sum([chunk.samples for chunk in drafted])
    for index, chunk in enumerate(drafted):
        if not chunk.drafts:
            found = tuple(token_id for token_id in reads[row + 1 : row + chunk.samples] if token_id >= 0)
            looked_up[index] = Draft(found, matches[row])
            chunks.append(replace(chunk, drafts=found))
        else:
            chunks.append(chunk)
        row += chunk.samples
    return tuple(chunks), looked_up


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
