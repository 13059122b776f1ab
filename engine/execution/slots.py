"""SlotState: what the runner knows of each occupied slot between steps.

Arrays with one row per slot, so that packing a step is a few gathers and not a loop over sequences. Mirrors the
scheduler's sequences through the changes that each batch carries; never decides anything.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from engine.scheduling.batch import Batch, Join

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

FOR_EVER = np.iinfo(np.int64).max
NOBODY: Ints = np.zeros(0, np.int64)


class SlotState:
    """Tokens [slots, max_len], page tables [slots, pages] and sampling parameters [slots] of everybody who runs. Tokens
    are those that were known when a sequence joined; what it samples after that stays on the device.
    """

    def __init__(self, slots: int, max_len: int, page_size: int) -> None:
        # Zeros of this size are virtual until touched, so a long context costs nothing before somebody uses it.
        self.tokens: Ints = np.zeros((slots, max_len + 1), np.int64)
        self.page_table = np.zeros((slots, -(-max_len // page_size)), np.int32)
        self.lengths: Ints = np.zeros(slots, np.int64)  # tokens, the sampled ones too
        self.prompt_lens: Ints = np.zeros(slots, np.int64)
        self.choice: Ints = np.zeros(slots, np.int64)
        self.temperature: Floats = np.zeros(slots, np.float32)
        self.top_k = np.zeros(slots, np.int32)
        self.top_p: Floats = np.ones(slots, np.float32)
        self.min_p: Floats = np.zeros(slots, np.float32)
        self.seed: Ints = np.zeros(slots, np.int64)
        self.frequency_penalty: Floats = np.zeros(slots, np.float32)
        self.presence_penalty: Floats = np.zeros(slots, np.float32)
        self.repetition_penalty: Floats = np.ones(slots, np.float32)
        self.min_tokens: Ints = np.zeros(slots, np.int64)
        self.logprobs: Ints = np.full(slots, -1, np.int64)  # -1 = off, k = that many alternatives
        self.biased = np.zeros(slots, np.bool_)  # has a logit_bias
        self.penalised = np.zeros(slots, np.bool_)  # has a penalty
        self._demands_until: Ints = np.zeros(slots, np.int64)  # tokens; then filters are all that it asks for
        self._demanding: set[int] = set()  # slots of those who asked for more when they joined

    def apply(self, batch: Batch) -> None:
        """Take in who grew and who joined."""
        for slot, index, page in batch.grown:
            self.page_table[slot, index] = page
        for join in batch.joins:
            self._join(join)

    def _join(self, join: Join) -> None:
        slot, sampling = join.slot, join.sampling
        self.tokens[slot, : len(join.tokens)] = join.tokens
        self.page_table[slot, : len(join.page_table)] = join.page_table
        self.lengths[slot] = len(join.tokens)
        self.prompt_lens[slot] = join.prompt_len
        self.choice[slot] = join.choice
        self.temperature[slot] = sampling.temperature
        self.top_k[slot] = sampling.top_k
        self.top_p[slot] = sampling.top_p
        self.min_p[slot] = sampling.min_p
        self.seed[slot] = np.uint64(sampling.seed).astype(np.int64)
        self.frequency_penalty[slot] = sampling.frequency_penalty
        self.presence_penalty[slot] = sampling.presence_penalty
        self.repetition_penalty[slot] = sampling.repetition_penalty
        self.min_tokens[slot] = sampling.min_tokens
        self.logprobs[slot] = -1 if sampling.logprobs is None else sampling.logprobs
        self.biased[slot] = bool(sampling.logit_bias)
        self.penalised[slot] = sampling.penalises
        always = sampling.logit_bias or sampling.penalises or sampling.logprobs is not None
        until = FOR_EVER if always else join.prompt_len + sampling.min_tokens
        self._demands_until[slot] = until
        if until > len(join.tokens):
            self._demanding.add(slot)
        else:
            self._demanding.discard(slot)

    def demanding(self, slots: Seq[int]) -> Ints:
        """Which of slots[R], as rows, ask for more than filters: edits of their logits now, or log-probabilities."""
        if self._demanding.isdisjoint(slots):
            return NOBODY
        which = np.array(slots, np.int64)
        return np.flatnonzero(self.lengths[which] < self._demands_until[which])

    def are_filtered(self, slots: Ints) -> bool:
        """Whether any of `slots` samples with a filter."""
        return bool(((self.top_k[slots] > 0) | (self.top_p[slots] < 1.0) | (self.min_p[slots] > 0.0)).any())

    def advance(self, slots: Ints) -> None:
        """A token was sampled for each of `slots`."""
        self.lengths[slots] += 1
