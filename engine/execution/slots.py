"""State of each occupied slot that the runner keeps between steps.

Arrays with one row per slot, so that packing a step takes a few gathers instead of a loop over sequences. Mirrors the
scheduler's sequences through the changes in each batch; makes no decisions.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from engine.scheduling.batch import Batch, Join
from engine.types import SamplingParams
from kernels.slots import SlotRecord, has_filters

Ints = NDArray[np.int64]

ALWAYS = np.iinfo(np.int64).max
NO_ROWS: Ints = np.zeros(0, np.int64)
SAMPLING_FIELDS = tuple(name for name in SamplingParams.__struct_fields__ if name in (SlotRecord.names or ()))


class SlotState:
    """Tokens [slots, max_len], page tables [slots, pages] and parameter records [slots] of the running sequences.

    Tokens are those known when a sequence joined; tokens sampled later stay on the device. Each of `drafts_in_flight`
    may make a sequence longer than `lengths`.
    """

    def __init__(self, slots: int, max_len: int, page_size: int) -> None:
        # Zeros of this size are virtual memory until touched, so unused context costs nothing.
        self.tokens: Ints = np.zeros((slots, max_len + 1), np.int64)
        self.page_table = np.zeros((slots, -(-max_len // page_size)), np.int32)
        self.lengths: Ints = np.zeros(slots, np.int64)  # tokens, including sampled ones
        self.drafts_in_flight: Ints = np.zeros(slots, np.int64)  # in steps whose outcome is not read
        self.num_joins: Ints = np.zeros(slots, np.int64)  # sequences that have joined
        self.records = np.zeros(slots, SlotRecord)
        self.biased = np.zeros(slots, np.bool_)  # has a logit_bias
        self.penalised = np.zeros(slots, np.bool_)  # has a penalty
        self._full_sampler_until: Ints = np.zeros(slots, np.int64)  # length from which on only filters are needed
        self._full_sampler_slots: set[int] = set()  # slots that needed more when they joined

    def apply(self, batch: Batch) -> None:
        """Apply the batch's new pages and joins."""
        for slot, index, page in batch.new_pages:
            self.page_table[slot, index] = page
        for join in batch.joins:
            self._join(join)

    def _join(self, join: Join) -> None:
        slot, sampling = join.slot, join.sampling
        self.tokens[slot, : len(join.tokens)] = join.tokens
        self.page_table[slot, : len(join.page_table)] = join.page_table
        self.lengths[slot], self.drafts_in_flight[slot] = len(join.tokens), 0
        self.num_joins[slot] += 1
        record = self.records[slot]
        record["choice"], record["prompt_len"] = join.choice, join.prompt_len
        for name in SAMPLING_FIELDS:
            value = getattr(sampling, name)
            record[name] = -1 if value is None else value
        self.biased[slot] = bool(sampling.logit_bias)
        self.penalised[slot] = sampling.has_penalties
        until = ALWAYS if sampling.needs_full_sampler else join.prompt_len + sampling.min_tokens
        self._full_sampler_until[slot] = until
        if until > len(join.tokens):
            self._full_sampler_slots.add(slot)
        else:
            self._full_sampler_slots.discard(slot)

    def needs_full_sampler(self, slots: Seq[int]) -> Ints:
        """Return the rows of slots[R] that need more than filters: logit edits now, or log-probabilities."""
        if self._full_sampler_slots.isdisjoint(slots):
            return NO_ROWS
        slot_ids = np.array(slots, np.int64)
        return np.flatnonzero(self.lengths[slot_ids] < self._full_sampler_until[slot_ids])

    def are_filtered(self, slots: Ints) -> bool:
        """Return whether any of `slots` samples with a filter."""
        return has_filters(self.records[slots])

    def advance(self, slots: Ints) -> None:
        """Count a sampled token for each of `slots`, one even if a slot occurs several times."""
        self.lengths[slots] += 1

    def advance_by(self, slots: Ints, counts: NDArray[np.int64]) -> None:
        """Count counts[R] sampled tokens for slots[R], in which a slot may occur several times."""
        np.add.at(self.lengths, slots, counts)
