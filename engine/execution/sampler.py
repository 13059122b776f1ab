"""From logits to tokens, all rows of a step at once.

Edits logits (min_tokens, logit_bias, penalties; in vLLM's order), samples through the kernels, and reads
log-probabilities off the unedited logits: what the model said, not what the caller made of it (vLLM's `raw_logprobs`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.execution.slots import Ints, SlotState
from engine.scheduling.batch import Sampled
from engine.types import Alternative
from kernels.interface import Kernels


class Sampler:
    """Samples one token for each of the given slots."""

    def __init__(self, slots: SlotState, kernels: Kernels, device: torch.device) -> None:
        self._slots = slots
        self._kernels = kernels
        self._device = device

    def sample(self, logits: Tensor, slots: Ints) -> tuple[Ints, tuple[Sampled, ...]]:
        """logits[R, V] float32, slots[R] -> the new ids [R], and the same with log-probabilities where asked for."""
        state = self._slots
        reshaped = np.flatnonzero(state.reshapes[slots])
        edited = self._reshape(logits, slots, reshaped) if len(reshaped) else logits
        chosen = self._kernels.sample(
            edited,
            self._tensor(state.temperature[slots]),
            self._tensor(state.top_k[slots]),
            self._tensor(state.top_p[slots]),
            self._tensor(state.min_p[slots]),
            self._tensor(state.seed[slots]),
            self._tensor(state.lengths[slots]),  # the new token's position in the whole sequence
            self._tensor(state.choice[slots]),
        )
        token_ids: Ints = chosen.cpu().numpy()
        asked = np.flatnonzero(state.logprobs[slots] >= 0)
        sampled = [Sampled(token_id) for token_id in token_ids.tolist()]
        if len(asked):
            rows = self._tensor(asked)
            self._add_log_probs(sampled, logits[rows], chosen[rows], asked, state.logprobs[slots][asked])
        return token_ids, tuple(sampled)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def _reshape(self, logits: Tensor, slots: Ints, rows: Ints) -> Tensor:
        """A copy of `logits` in which `rows` are edited."""
        state, where = self._slots, slots[rows]
        edited = logits[self._tensor(rows)]
        generated = state.lengths[where] - state.prompt_lens[where]
        for row, slot in enumerate(where.tolist()):
            if slot in state.stop_ids and generated[row] < state.min_tokens[slot]:
                edited[row, self._tensor(state.stop_ids[slot])] = -torch.inf
            if slot in state.bias:
                ids, values = state.bias[slot]
                edited[row, self._tensor(ids)] += self._tensor(values)
        repetition = state.repetition_penalty[where]
        if (repetition != 1.0).any():
            seen = self._counts(where, np.zeros_like(where), edited.shape[1]) > 0
            factor = self._tensor(repetition).unsqueeze(1)
            edited = torch.where(seen, torch.where(edited > 0, edited / factor, edited * factor), edited)
        frequency, presence = state.frequency_penalty[where], state.presence_penalty[where]
        if frequency.any() or presence.any():
            counts = self._counts(where, state.prompt_lens[where], edited.shape[1])
            edited -= self._tensor(frequency).unsqueeze(1) * counts
            edited -= self._tensor(presence).unsqueeze(1) * (counts > 0)
        return logits.index_copy(0, self._tensor(rows), edited)

    def _counts(self, slots: Ints, first: Ints, vocab_size: int) -> Tensor:
        """How often each id stands in tokens[first:] of each slot: [len(slots), V] float32."""
        lengths = self._slots.lengths[slots]
        positions = np.arange(lengths.max())
        mask = (positions >= first[:, None]) & (positions < lengths[:, None])
        rows, _ = np.nonzero(mask)
        ids = self._slots.tokens[slots, : len(positions)][mask]
        flat = self._tensor(rows * vocab_size + ids)
        counts = torch.zeros(len(slots) * vocab_size, device=self._device)
        counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.float32))
        return counts.view(len(slots), vocab_size)

    def _add_log_probs(self, sampled: list[Sampled], logits: Tensor, chosen: Tensor, rows: Ints, wanted: Ints) -> None:
        """Replace the entries `rows` of `sampled` by ones that carry log-probabilities."""
        log_probs, ids, top, _ = self._kernels.log_probs(logits, chosen, int(wanted.max()))
        lists = zip(rows.tolist(), wanted.tolist(), log_probs.tolist(), ids.tolist(), top.tolist(), strict=True)
        for row, count, log_prob, alternatives, values in lists:
            pairs = zip(alternatives[:count], values[:count], strict=True)
            sampled[row] = Sampled(sampled[row].token_id, log_prob, tuple(Alternative(*pair) for pair in pairs))
