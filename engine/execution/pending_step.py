"""Outcome of a step, read from a copy of its results on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine.drafting.lookup import Draft
from engine.execution.drafted_rows import accepted, with_lookups
from engine.execution.graphs import ReplayedStep
from engine.execution.prompt_logprobs import PromptLogProbs, read_prompt_tokens
from engine.execution.sampler import SampledTokens
from engine.execution.slots import SlotState
from engine.execution.transfer import HostCopy
from engine.scheduling.batch import Chunk, Sampled, StepOutcome


class DraftsInFlight:
    """Drafts of a step in flight, of the last sampled rows."""

    def __init__(self, chunks: tuple[Chunk, ...], slots: SlotState, replayed: ReplayedStep | None) -> None:
        """Count the drafts. replayed: the recorded step that has looked up some of them."""
        self._chunks, self._slots = chunks, slots
        self._slot_ids = np.array([chunk.slot for chunk in chunks], np.int64)
        slots.drafts_in_flight[self._slot_ids] += [chunk.num_drafts for chunk in chunks]
        self._num_joins = slots.num_joins[self._slot_ids]
        has_lookups = replayed is not None and not all(chunk.drafts for chunk in chunks)
        self.tensors = (replayed.reads, replayed.matches) if replayed is not None and has_lookups else ()

    def read(
        self, sampled: list[Sampled], tensors: Iterator[Tensor]
    ) -> tuple[list[Sampled], dict[int, tuple[Sampled, ...]], dict[int, Draft]]:
        """Return the first token of each sequence, those after it that count, and the drafts that were looked up, both
        by index.

        sampled: of all rows. tensors: copies of `self.tensors`. Slots that another sequence has joined keep its length.
        """
        chunks, looked_up = self._chunks, dict[int, Draft]()
        if self.tensors:
            chunks, looked_up = with_lookups(chunks, next(tensors).tolist(), next(tensors).tolist())
        first, further = accepted(sampled, chunks)
        begin = len(first) - len(chunks)
        counted = np.array([len(further.get(begin + index, ())) for index in range(len(chunks))], np.int64)
        is_own = self._slots.num_joins[self._slot_ids] == self._num_joins
        self._slots.lengths[self._slot_ids[is_own]] += counted[is_own]  # the launch has counted the first token
        drafts = np.array([chunk.num_drafts for chunk in chunks], np.int64)
        self._slots.drafts_in_flight[self._slot_ids[is_own]] -= drafts[is_own]
        return first, further, {begin + index: draft for index, draft in looked_up.items()}


@dataclass(frozen=True, slots=True)
class PendingStep:
    """Step in flight; a call waits for its outcome."""

    host_copy: HostCopy
    sampled_parts: list[SampledTokens]
    rows: tuple[int, ...]  # for each chunk, the number of rows that are checked for NaN
    prompt_parts: list[PromptLogProbs]
    drafted: DraftsInFlight | None = None

    def __call__(self) -> StepOutcome:
        tensors = iter(self.host_copy.wait())
        has_nan: tuple[bool, ...] = ()
        if self.rows:
            of_chunk = np.repeat(np.arange(len(self.rows)), self.rows)
            counts = np.bincount(of_chunk, next(tensors).numpy(), minlength=len(self.rows))
            has_nan = tuple((counts > 0).tolist())
        sampled = [token for part in self.sampled_parts for token in part.read([next(tensors) for _ in part.tensors])]
        prompt_tokens = read_prompt_tokens(self.prompt_parts, tensors)
        further: dict[int, tuple[Sampled, ...]] = {}
        looked_up: dict[int, Draft] = {}
        if self.drafted is not None:
            sampled, further, looked_up = self.drafted.read(sampled, tensors)
        return StepOutcome(tuple(sampled), has_nan, prompt_tokens, self.host_copy.seconds, further, looked_up)
