"""From logits to tokens, all rows of a step at once.

Samples the edited logits through the kernels, and reads log-probabilities off the unedited ones: what the model said,
not what the caller made of it (vLLM's `raw_logprobs`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from engine.execution.edits import LogitEdits
from engine.execution.slots import Ints, SlotState
from engine.scheduling.batch import Join, Sampled
from engine.types import Alternative
from kernels.interface import Kernels


class Sampler:
    """Samples one token for each of the given slots."""

    def __init__(self, slots: SlotState, kernels: Kernels, vocab_size: int, device: torch.device) -> None:
        self._slots = slots
        self._kernels = kernels
        self._device = device
        self._edits = LogitEdits(slots, vocab_size, device)

    def join(self, joins: Iterable[Join]) -> None:
        """Take in what those who joined ask to be done to their logits."""
        self._edits.join(joins)

    def sample(self, logits: Tensor, slots: Ints) -> tuple[Ints, tuple[Sampled, ...]]:
        """logits[R, V] float32, slots[R] -> the new ids [R], and the same with log-probabilities where asked for."""
        state = self._slots
        chosen = self._kernels.sample(
            self._edits.apply(logits, slots),
            self._tensor(state.temperature[slots]),
            self._tensor(state.top_k[slots]),
            self._tensor(state.top_p[slots]),
            self._tensor(state.min_p[slots]),
            self._tensor(state.seed[slots]),
            self._tensor(state.lengths[slots]),  # the new token's position in the whole sequence
            self._tensor(state.choice[slots]),
        )
        self._edits.append(slots, chosen)
        token_ids: Ints = chosen.cpu().numpy()
        asked = np.flatnonzero(state.logprobs[slots] >= 0)
        sampled = [Sampled(token_id) for token_id in token_ids.tolist()]
        if len(asked):
            rows = self._tensor(asked)
            self._add_log_probs(sampled, logits[rows], chosen[rows], asked, state.logprobs[slots][asked])
        return token_ids, tuple(sampled)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def _add_log_probs(self, sampled: list[Sampled], logits: Tensor, chosen: Tensor, rows: Ints, wanted: Ints) -> None:
        """Replace the entries `rows` of `sampled` by ones that carry log-probabilities."""
        log_probs, ids, top = self._kernels.log_probs(logits, chosen, int(wanted.max()))
        lists = zip(rows.tolist(), wanted.tolist(), log_probs.tolist(), ids.tolist(), top.tolist(), strict=True)
        for row, count, log_prob, alternatives, values in lists:
            pairs = zip(alternatives[:count], values[:count], strict=True)
            sampled[row] = Sampled(sampled[row].token_id, log_prob, tuple(Alternative(*pair) for pair in pairs))
