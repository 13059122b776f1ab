"""Outcome of a step, read from a copy of its results on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.execution.drafted_rows import accepted
from engine.execution.prompt_logprobs import PromptLogProbs, read_prompt_tokens
from engine.execution.sampler import SampledTokens
from engine.execution.slots import SlotState
from engine.execution.transfer import HostCopy
from engine.scheduling.batch import Chunk, Sampled, StepOutcome


@dataclass(frozen=True, slots=True)
class PendingStep:
    """Step in flight; a call waits for its outcome."""

    host_copy: HostCopy
    sampled_parts: list[SampledTokens]
    rows: tuple[int, ...]  # for each chunk, the number of rows that are checked for NaN
    prompt_parts: list[PromptLogProbs]
    drafted: tuple[Chunk, ...]  # of the last sampled rows; their slots are in no other step before the outcome
    slots: SlotState

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
        if self.drafted:
            sampled, further = accepted(sampled, self.drafted)
            slots = [self.drafted[index - len(sampled)].slot for index in further]
            counted = [len(tokens) for tokens in further.values()]  # the launch has counted the first token
            self.slots.advance_by(np.array(slots, np.int64), np.array(counted, np.int64))
        return StepOutcome(tuple(sampled), has_nan, prompt_tokens, self.host_copy.seconds, further)
