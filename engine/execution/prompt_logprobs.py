"""Log-probabilities of prompt tokens, for requests that ask for them. Their prompts run operation by operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine.execution.models.interface import Model
from engine.execution.sampler import MAX_ALTERNATIVES
from engine.execution.slots import SlotState
from engine.execution.transfer import to_device
from engine.scheduling.batch import Batch
from engine.types import Alternative, PromptToken
from kernels.interface import Kernels

ROWS_AT_A_TIME = 64  # rows of logits in memory at once


def has_prompt_logprobs(batch: Batch) -> bool:
    """Return whether any chunk reports log-probabilities of its prompt."""
    return any(chunk.prompt_logprobs is not None for chunk in batch.chunks)


@dataclass(frozen=True, slots=True)
class PromptLogProbs:
    """Log-probabilities of consecutive prompt tokens, still on the device.

    chunk: index in `Batch.chunks`. alternatives: number to report. log_probs: (chosen[R], ids[R, k], values[R, k]).
    """

    chunk: int
    alternatives: int
    log_probs: tuple[Tensor, Tensor, Tensor]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that the host reads."""
        return self.log_probs


def prompt_log_probs(
    batch: Batch, slots: SlotState, hidden: Tensor, model: Model, kernels: Kernels
) -> list[PromptLogProbs]:
    """Return the log-probabilities of the prompt tokens after each position of the chunks that report them.

    hidden: [T, H], the decode rows, with those of drafts, and then the rows of other chunks.
    """
    parts: list[PromptLogProbs] = []
    row = batch.rows
    for index, chunk in enumerate(batch.chunks):
        count = chunk.prompt_logprobs
        length = min(chunk.length, int(slots.records["prompt_len"][chunk.slot]) - 1 - chunk.start)
        for first in range(0, length if count is not None else 0, ROWS_AT_A_TIME):
            size = min(ROWS_AT_A_TIME, length - first)
            position = chunk.start + first + 1
            (chosen,) = to_device((np.array(slots.tokens[chunk.slot, position : position + size]),), hidden.device)
            logits = model.compute_logits(hidden[row + first : row + first + size])
            # The choice among equal alternatives depends on their number, as in `Sampler.sample`.
            alternatives = min(max(MAX_ALTERNATIVES, count or 0), logits.shape[1])
            parts.append(PromptLogProbs(index, count or 0, kernels.log_probs(logits, chosen, alternatives)))
        row += chunk.length
    return parts


def read_prompt_tokens(
    parts: Sequence[PromptLogProbs], tensors: Iterator[Tensor]
) -> dict[int, tuple[PromptToken, ...]]:
    """Return the prompt tokens of each chunk, given the parts' tensors on the host."""
    tokens: dict[int, tuple[PromptToken, ...]] = {}
    for part in parts:
        chosen, ids, values = (next(tensors).tolist() for _ in part.tensors)
        read = tuple(
            PromptToken(log_prob, tuple(map(Alternative, row_ids[: part.alternatives], row_values)))
            for log_prob, row_ids, row_values in zip(chosen, ids, values, strict=True)
        )
        tokens[part.chunk] = tokens.get(part.chunk, ()) + read
    return tokens
