"""ModelRunner: puts batches through a model. Memory moves, packing, forward, sampling; in this order, every step."""

from __future__ import annotations

import numpy as np
import torch

from engine.execution.cache import KVCache
from engine.execution.models.interface import Model
from engine.execution.packing import pack
from engine.execution.sampler import Sampler
from engine.execution.slots import SlotState
from engine.scheduling.batch import Batch, Outcome
from kernels.interface import Kernels


class ModelRunner:
    """Owns the KV cache and the slots' state of one model on one device."""

    def __init__(self, model: Model, cache: KVCache, kernels: Kernels, slots: int, max_len: int) -> None:
        self._model = model
        self._cache = cache
        self._kernels = kernels
        self._slots = SlotState(slots, max_len, cache.page_size)
        self._sampler = Sampler(self._slots, kernels, model.vocab_size, model.device)

    @torch.inference_mode()
    def execute(self, batch: Batch) -> Outcome:
        """Compute one step. Moves come first and in this order; `engine.scheduling.moves` says why."""
        if batch.swap_out:
            self._cache.swap_out(batch.swap_out)
        if batch.copies:
            self._cache.copy_pages(*zip(*batch.copies, strict=True))
        if batch.swap_in:
            self._cache.swap_in(batch.swap_in)
        self._slots.apply(batch)
        self._sampler.join(batch.joins)
        if not batch.num_tokens:
            return Outcome(())
        inputs = pack(batch, self._slots, self._cache.page_size, self._model.device)
        hidden = self._model.forward(inputs, self._cache, self._kernels)
        sampled_slots = np.array(batch.sampled, np.int64)
        if not len(sampled_slots):
            return Outcome(())
        logits = self._model.compute_logits(hidden[inputs.logit_rows])
        token_ids, sampled = self._sampler.sample(logits, sampled_slots)
        self._slots.append(sampled_slots, token_ids)
        return Outcome(sampled)
