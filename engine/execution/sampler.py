"""Sampling of tokens from logits, all rows of a step at once.

Tokens are sampled from the edited logits by the kernels. Log-probabilities come from the unedited logits, the model's
own output (vLLM's `raw_logprobs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.execution.drafted_rows import SampledRows
from engine.execution.logit_edits import LogitEditMask, LogitEdits
from engine.execution.slots import Ints, SlotState
from engine.execution.token_masks import AllowedTokens
from engine.execution.transfer import to_device
from engine.scheduling.batch import Join, Sampled
from engine.scheduling.constraint import NO_TOKEN_ALLOWED
from engine.types import Alternative
from kernels.interface import Kernels
from kernels.reference.accept import CountedRows, count_rows
from kernels.slots import DraftRows, SamplingTensors, as_bytes

# Number of alternatives computed, even if fewer are requested. The choice among equal ones depends on this number, and
# must not depend on a neighbour's request.
MAX_ALTERNATIVES = 20


class Sampler:
    """Samples one token for each of the given slots."""

    def __init__(self, slots: SlotState, kernels: Kernels, vocab_size: int, device: torch.device) -> None:
        self._slots = slots
        self._kernels = kernels
        self._device = device
        self._edits = LogitEdits(slots, kernels, vocab_size, device)
        if device.type == "cuda":  # GPU memory is not allocated lazily
            self._edits.reserve()

    def join(self, joins: Iterable[Join]) -> None:
        """Fill the logit-edit tables for joining sequences."""
        self._edits.join(joins)

    def parameters(self, slots: Ints, drafted: SampledRows | None = None) -> SamplerInputs:
        """Return the sampling parameters for the next token of slots[R]. drafted: these rows, if some have drafts."""
        lengths = self._slots.lengths[slots]
        if drafted is not None:
            lengths += drafted.offsets
        records = self._slots.records[slots]
        rows = np.flatnonzero(records["logprobs"] >= 0)
        slot_ids, record_bytes, positions, row_index = to_device(
            (slots, as_bytes(records), lengths, rows), self._device
        )
        counts = tuple(zip(rows.tolist(), records["logprobs"][rows].tolist(), strict=True))
        sampling = SamplingTensors(record_bytes, positions)
        edits = self._edits.edits_for(slots, lengths, drafted)
        drafts = DraftRows(*to_device((drafted.offsets, drafted.reads), self._device)) if drafted is not None else None
        return SamplerInputs(slot_ids, sampling, edits, row_index, counts, drafts)

    def sample(self, logits: Tensor, parameters: SamplerInputs, allowed: AllowedTokens | None = None) -> SampledTokens:
        """Sample a new token for each of the R rows of logits[R, V] (any float dtype).

        Includes log-probabilities for rows that request them. Logits in float32 may be edited in place. allowed: the
        tokens that constrained rows may sample.
        """
        edited, is_empty = logits, None
        if parameters.edits is not None or allowed is not None:
            # Log-probabilities are those of the unedited logits.
            edited = logits.to(torch.float32, copy=bool(parameters.logprob_rows)).contiguous()
        if parameters.edits is not None:
            self._edits.apply(edited, parameters.edits, parameters.sampling)
        if allowed is not None:
            is_empty = allowed.apply(edited, self._kernels)
        chosen = self._kernels.sample(edited, parameters.sampling)
        token_ids = chosen if allowed is None or is_empty is None else allowed.mark_empty(chosen, is_empty)
        counted = count_rows(token_ids, parameters.drafts) if parameters.drafts is not None else None
        self._edits.append(parameters.edits, chosen, counted)
        log_probs = self._log_probs(logits, chosen, parameters)
        return SampledTokens(parameters.slots, token_ids, log_probs, parameters.logprob_rows, counted)

    def _log_probs(
        self, logits: Tensor, chosen: Tensor, parameters: SamplerInputs
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        if not parameters.logprob_rows:
            return None
        rows, num_alternatives = (
            parameters.rows,
            max(MAX_ALTERNATIVES, *(count for _, count in parameters.logprob_rows)),
        )
        return self._kernels.log_probs(logits[rows], chosen[rows], min(num_alternatives, logits.shape[1]))


@dataclass(frozen=True, slots=True)
class SamplerInputs:
    """Sampling parameters of R rows, on the device.

    slots[R] int64; sampling: the argument of `Kernels.sample`; rows[A] int64, which request log-probabilities.
    logprob_rows: these rows, and the number of alternatives for each. drafts: None if no slot has any.
    """

    slots: Tensor
    sampling: SamplingTensors
    edits: LogitEditMask | None
    rows: Tensor
    logprob_rows: tuple[tuple[int, int], ...]
    drafts: DraftRows | None = None


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Sampled tokens, still on the device: token_ids[R] of slots[R], both int64.

    log_probs: for the A rows that request them (chosen[A], ids[A, k], values[A, k]). logprob_rows: these rows, and the
    number of alternatives for each. counted: the rows with tokens that count, if some have drafts.
    """

    slots: Tensor
    token_ids: Tensor
    log_probs: tuple[Tensor, Tensor, Tensor] | None = None
    logprob_rows: tuple[tuple[int, int], ...] = ()
    counted: CountedRows | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that the host reads."""
        return (self.token_ids, *(self.log_probs or ()))

    def with_rows(self, rows: Ints, row_index: Tensor, other: SampledTokens) -> SampledTokens:
        """Return a copy with the tokens and log-probabilities of `other` in rows[N] (on the device: `row_index`)."""
        ids = self.token_ids.index_copy(0, row_index, other.token_ids)
        return SampledTokens(
            self.slots, ids, other.log_probs, tuple((int(rows[row]), count) for row, count in other.logprob_rows)
        )

    def without(self, rows: Ints) -> SampledTokens:
        """Return a copy with `NO_TOKEN_ALLOWED` in rows[N]."""
        if not len(rows):
            return self
        (row_index,) = to_device((rows,), self.token_ids.device)
        return replace(self, token_ids=self.token_ids.index_fill(0, row_index, NO_TOKEN_ALLOWED))

    def read(self, tensors: Sequence[Tensor]) -> tuple[Sampled, ...]:
        """Return the tokens, given `tensors` copied to the host."""
        token_ids, *rest = tensors
        sampled = [Sampled(token_id) for token_id in token_ids.tolist()]
        if rest:
            for (row, count), log_prob, ids, values in zip(self.logprob_rows, *(t.tolist() for t in rest), strict=True):
                pairs = zip(ids[:count], values[:count], strict=True)
                sampled[row] = Sampled(sampled[row].token_id, log_prob, tuple(Alternative(*pair) for pair in pairs))
        return tuple(sampled)
