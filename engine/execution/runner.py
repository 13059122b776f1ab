"""ModelRunner: puts batches through a model. Memory moves, packing, forward, sampling; in this order, every step.

What was sampled stays on the device, where the next step reads it; the host hears of it when it asks. So on a GPU a
step can be launched while the one before is computed, and nothing here may wait for the device
(`engine.execution.transfer`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from engine.execution.cache import KVCache
from engine.execution.models.interface import Model
from engine.execution.packing import pack
from engine.execution.sampler import Drawn, Sampler
from engine.execution.slots import SlotState
from engine.execution.transfer import Arriving, to_device
from engine.scheduling.batch import Batch, Outcome
from kernels.interface import Kernels


class ModelRunner:
    """Owns the KV cache and the slots' state of one model on one device."""

    def __init__(self, model: Model, cache: KVCache, kernels: Kernels, slots: int, max_len: int) -> None:
        self._model = model
        self._cache = cache
        self._kernels = kernels
        self._slots = SlotState(slots, max_len, cache.page_size)
        self._last_tokens = torch.zeros(slots, dtype=torch.int64, device=model.device)
        self._sampler = Sampler(self._slots, kernels, model.vocab_size, model.device)

    @property
    def runs_ahead(self) -> bool:
        """On a GPU, which computes while we go on."""
        return self._model.device.type == "cuda"

    @torch.inference_mode()
    def launch(self, batch: Batch) -> Callable[[], Outcome]:
        """Begin one step. Moves come first and in this order; `engine.scheduling.moves` says why."""
        if batch.swap_out:
            self._cache.swap_out(batch.swap_out)
        if batch.copies:
            self._cache.copy_pages(*zip(*batch.copies, strict=True))
        if batch.swap_in:
            self._cache.swap_in(batch.swap_in)
        self._slots.apply(batch)
        self._join(batch)
        logits, sampled_slots = None, np.array(batch.sampled, np.int64)
        if batch.num_tokens:
            inputs = pack(batch, self._slots, self._last_tokens, self._cache.page_size)
            hidden = self._model.forward(inputs, self._cache, self._kernels)
            if len(sampled_slots):
                logits = self._model.compute_logits(hidden[inputs.logit_rows])
        if logits is None:
            return _Step(Arriving((), self._model.device), None)
        drawn = self._sampler.sample(logits, sampled_slots)
        self._last_tokens.index_copy_(0, drawn.slots, drawn.token_ids)
        self._slots.advance(sampled_slots)
        return _Step(Arriving(drawn.tensors, self._model.device), drawn)

    def _join(self, batch: Batch) -> None:
        if not batch.joins:
            return
        self._sampler.join(batch.joins)
        slots = np.array([join.slot for join in batch.joins], np.int64)
        last = np.array([join.tokens[-1] for join in batch.joins], np.int64)
        self._last_tokens.index_copy_(0, *to_device((slots, last), self._model.device))


@dataclass(frozen=True, slots=True)
class _Step:
    """A step under way; called, it waits."""

    arriving: Arriving
    drawn: Drawn | None

    def __call__(self) -> Outcome:
        tensors = self.arriving.wait()
        return Outcome(self.drawn.read(tensors) if self.drawn else ())
