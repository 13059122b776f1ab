"""From logits to tokens, all rows of a step at once.

Samples the edited logits through the kernels, and reads log-probabilities off the unedited ones: what the model said,
not what the caller made of it (vLLM's `raw_logprobs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.execution.edits import LogitEdits, Wanted
from engine.execution.slots import Ints, SlotState
from engine.execution.transfer import to_device
from engine.scheduling.batch import Join, Sampled
from engine.types import Alternative
from kernels.interface import Kernels

# That are looked for, whoever asks for fewer: which of equal ones are found depends on how many are wanted, and must
# not depend on how many a neighbour wants.
ALTERNATIVES = 20


class Sampler:
    """Samples one token for each of the given slots."""

    def __init__(self, slots: SlotState, kernels: Kernels, vocab_size: int, device: torch.device) -> None:
        self._slots = slots
        self._kernels = kernels
        self._device = device
        self._edits = LogitEdits(slots, vocab_size, device)
        if device.type == "cuda":  # where memory is not given out lazily
            self._edits.reserve()

    def join(self, joins: Iterable[Join]) -> None:
        """Take in what those who joined ask to be done to their logits."""
        self._edits.join(joins)

    def parameters(self, slots: Ints) -> Parameters:
        """What those in slots[R] ask of their next token."""
        state = self._slots
        asked = np.flatnonzero(state.logprobs[slots] >= 0)
        slot_ids, *given, rows = to_device(
            (
                slots,
                state.temperature[slots],
                state.top_k[slots],
                state.top_p[slots],
                state.min_p[slots],
                state.seed[slots],
                state.lengths[slots],  # the new token's position in the whole sequence
                state.choice[slots],
                asked,
            ),
            self._device,
        )
        counts = tuple(zip(asked.tolist(), state.logprobs[slots[asked]].tolist(), strict=True))
        return Parameters(slot_ids, tuple(given), self._edits.wanted(slots), rows, counts)

    def sample(self, logits: Tensor, parameters: Parameters) -> Drawn:
        """logits[R, V] any float -> one new token for each of those R, and log-probabilities where they are asked
        for."""
        chosen = self._kernels.sample(self._edits.apply(logits, parameters.edits), *parameters.given)
        self._edits.append(parameters.edits, chosen)
        if not parameters.asked:
            return Drawn(parameters.slots, chosen)
        rows, most = parameters.rows, max(ALTERNATIVES, *(count for _, count in parameters.asked))
        log_probs = self._kernels.log_probs(logits[rows], chosen[rows], min(most, logits.shape[1]))
        return Drawn(parameters.slots, chosen, log_probs, parameters.asked)


@dataclass(frozen=True, slots=True)
class Parameters:
    """What R rows ask of the sampler, on the device: slots[R] int64; what `Kernels.sample` is given, each [R], in its
    order; and rows[A] int64, those that ask for log-probabilities. asked: those rows, and how many alternatives each
    wants.
    """

    slots: Tensor
    given: tuple[Tensor, ...]
    edits: Wanted | None
    rows: Tensor
    asked: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was sampled, still on the device: token_ids[R] of slots[R], both int64.

    log_probs: of the A rows that ask for them (chosen[A], ids[A, k], values[A, k]). asked: those rows, and how many
    alternatives each wants.
    """

    slots: Tensor
    token_ids: Tensor
    log_probs: tuple[Tensor, Tensor, Tensor] | None = None
    asked: tuple[tuple[int, int], ...] = ()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What the host wants to read."""
        return (self.token_ids, *(self.log_probs or ()))

    def replaced(self, rows: Ints, where: Tensor, by: Drawn) -> Drawn:
        """The same with other tokens in rows[N], on the device `where`, and their log-probabilities: those of `by`."""
        ids = self.token_ids.index_copy(0, where, by.token_ids)
        return Drawn(self.slots, ids, by.log_probs, tuple((int(rows[row]), count) for row, count in by.asked))

    def read(self, tensors: Sequence[Tensor]) -> tuple[Sampled, ...]:
        """tensors: those above, on the host."""
        token_ids, *rest = tensors
        sampled = [Sampled(token_id) for token_id in token_ids.tolist()]
        if rest:
            for (row, count), log_prob, ids, values in zip(self.asked, *(t.tolist() for t in rest), strict=True):
                pairs = zip(ids[:count], values[:count], strict=True)
                sampled[row] = Sampled(sampled[row].token_id, log_prob, tuple(Alternative(*pair) for pair in pairs))
        return tuple(sampled)
