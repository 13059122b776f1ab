"""ModelRunner: puts batches through a model. Memory moves, packing, forward, sampling; in this order, every step.

What was sampled stays on the device, where the next step reads it; the host hears of it when it asks. So on a GPU a
step can be launched while the one before is computed, and nothing here may wait for the device
(`engine.execution.transfer`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.execution.cache import KVCache
from engine.execution.device_slots import DeviceSlots
from engine.execution.graphs import Capture, DecodeGraphs
from engine.execution.models.interface import Model
from engine.execution.packing import pack
from engine.execution.sampler import Drawn, Sampler
from engine.execution.slots import Ints, SlotState
from engine.execution.swap import Swap
from engine.execution.transfer import Arriving, to_device
from engine.scheduling.batch import Batch, Join, Outcome
from kernels.interface import Kernels

AHEAD = 256 << 20  # bytes of fresh pages that are ready for whoever comes
PIECE = 2 << 20  # bytes taken at a time: where a virtual machine's memory is new to its host too, that takes 5 ms


class ModelRunner:
    """Owns the KV cache and the slots' state of one model on one device."""

    def __init__(
        self, model: Model, cache: KVCache, kernels: Kernels, slots: int, max_len: int, capture: Capture | None = None
    ) -> None:
        """capture: how decode steps are recorded; None: every step is launched operation by operation."""
        self._model = model
        self._cache = cache
        self._swap = Swap(cache)
        self._kernels = kernels
        self._slots = SlotState(slots, max_len, cache.page_size)
        self._taken = 0  # pages below this one have memory
        self._last_tokens = torch.zeros(slots + 1, dtype=torch.int64, device=model.device)  # the last one is nobody's
        self._sampler = Sampler(self._slots, kernels, model.vocab_size, model.device)
        self._graphs: DecodeGraphs | None = None
        if capture is not None:
            mirror = DeviceSlots(self._slots, self._last_tokens)
            self._graphs = DecodeGraphs(model, cache, kernels, mirror, max_len, capture)

    def record(self, progress: Callable[[int, int], None]) -> None:
        """Record decode steps, where they are to be."""
        if self._graphs:
            self._graphs.record(progress)

    @property
    def runs_ahead(self) -> bool:
        """On a GPU, which computes while we go on."""
        return self._model.device.type == "cuda"

    @torch.inference_mode()
    def launch(self, batch: Batch) -> Callable[[], Outcome]:
        """Begin one step. Moves come first and in this order; `engine.scheduling.moves` says why."""
        self._swap.land()
        if batch.swap_out:
            self._swap.out(batch.swap_out)
        if batch.copies:
            self._cache.copy_pages(*zip(*batch.copies, strict=True))
        if batch.swap_in:
            self._swap.back(batch.swap_in)
        self._slots.apply(batch)
        self._join(batch.joins)
        drawn: list[Drawn] = []
        if self._graphs:
            self._graphs.slots.apply(batch)
            if batch.decodes:
                drawn.append(self._replay(self._graphs, np.array(batch.decodes, np.int64)))
                batch = replace(batch, decodes=())
        broken: list[Tensor] = []
        if batch.num_tokens:
            more, broken = self._compute(batch)
            drawn += more
        wanted = [*(tensor for some in drawn for tensor in some.tensors), *broken]
        return _Step(Arriving(wanted, self._model.device), drawn)

    def take_memory(self, pages: int) -> bool:
        """See `engine.engine.Runner`. A GPU's cache has its memory from the beginning."""
        page_bytes = self._cache.data[0].nbytes
        first, last = max(pages, self._taken), min(self._cache.num_pages, pages + AHEAD // page_bytes)
        if first >= last or self._cache.device.type != "cpu":
            return False
        self._taken = min(last, first + -(-PIECE // page_bytes))
        self._cache.data[first : self._taken].zero_()
        return True

    def _join(self, joins: tuple[Join, ...]) -> None:
        if joins:
            self._sampler.join(joins)
            slots = np.array([join.slot for join in joins], np.int64)
            last = np.array([join.tokens[-1] for join in joins], np.int64)
            self._last_tokens.index_copy_(0, *to_device((slots, last), self._model.device))

    def _replay(self, graphs: DecodeGraphs, decodes: Ints) -> Drawn:
        """A recorded step. Who asks for more than it does is sampled again, from the same hidden states."""
        drawn, hidden = graphs.run(decodes, int(self._slots.lengths[decodes].max()), self._slots.are_filtered(decodes))
        rows = np.flatnonzero(self._slots.demanding(decodes))
        if len(rows):
            (where,) = to_device((rows,), self._model.device)
            logits = self._model.compute_logits(hidden[where])
            again = self._sampler.sample(logits, self._sampler.parameters(decodes[rows]))
            self._last_tokens.index_copy_(0, again.slots, again.token_ids.clamp(min=0))
            drawn = drawn.replaced(rows, where, again)
        self._slots.advance(decodes)
        return drawn

    def _compute(self, batch: Batch) -> tuple[list[Drawn], list[Tensor]]:
        """Operation by operation. Returns what was sampled, if anything was, and which chunks have a NaN in them, if
        there are chunks."""
        inputs = pack(batch, self._slots, self._last_tokens, self._cache.page_size)
        sampled = np.array(batch.sampled, np.int64)
        # Before the weights are read, after which nothing that we need is in a cache any more.
        parameters = self._sampler.parameters(sampled) if len(sampled) else None
        hidden = self._model.forward(inputs, self._cache, self._kernels)
        broken = []
        if batch.chunks:  # all of their rows: behind a window the last ones have numbers again
            of_chunks = torch.split(hidden[len(batch.decodes) :], [chunk.length for chunk in batch.chunks])
            broken = [torch.stack([rows.isnan().any() for rows in of_chunks])]
        if parameters is None:
            return [], broken
        if inputs.logit_rows is not None:
            hidden = hidden[inputs.logit_rows]
        drawn = self._sampler.sample(self._model.compute_logits(hidden), parameters)
        self._last_tokens.index_copy_(0, drawn.slots, drawn.token_ids.clamp(min=0))  # of a broken row any will do
        self._slots.advance(sampled)
        if self._graphs:
            self._graphs.slots.advance(drawn.slots)
        return [drawn], broken


@dataclass(frozen=True, slots=True)
class _Step:
    """A step under way; called, it waits."""

    arriving: Arriving
    drawn: list[Drawn]

    def __call__(self) -> Outcome:
        tensors = iter(self.arriving.wait())
        sampled = [one for some in self.drawn for one in some.read([next(tensors) for _ in some.tensors])]
        return Outcome(tuple(sampled), tuple(flag for rest in tensors for flag in rest.tolist()))
