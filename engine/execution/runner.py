"""ModelRunner: puts batches through a model. Memory moves, packing, forward, sampling; in this order, every step.

On a CPU all but the moves is one call, where nobody asks for more than filters. On a GPU what was sampled stays there,
where the next step reads it; the host hears of it when it asks. So a step can be launched while the one before is
computed, and nothing here may wait for the device (`engine.execution.transfer`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.execution.cache import KVCache
from engine.execution.device_slots import DeviceSlots
from engine.execution.graphs import Capture, PromptTokens, Shape, StepGraphs
from engine.execution.models.interface import Model
from engine.execution.packing import pack, prompt_tokens
from engine.execution.sampler import Drawn, Sampler
from engine.execution.slots import Ints, SlotState
from engine.execution.swap import Swap
from engine.execution.transfer import Arriving, to_device
from engine.scheduling.batch import Batch, Outcome, Sampled
from kernels.decoder import StepPass
from kernels.interface import Kernels
from kernels.slots import StepState

AHEAD = 256 << 20  # bytes of fresh pages that are ready for whoever comes
PIECE = 2 << 20  # bytes taken at a time: where a virtual machine's memory is new to its host too, that takes 5 ms


class ModelRunner:
    """Owns the KV cache and the slots' state of one model on one device."""

    def __init__(
        self, model: Model, cache: KVCache, kernels: Kernels, slots: int, max_len: int, capture: Capture | None = None
    ) -> None:
        """capture: how steps are recorded; None: they are not, and what can be is computed in one go, the rest
        operation by operation."""
        self._model = model
        self._cache = cache
        self._swap = Swap(cache)
        self._kernels = kernels
        self._slots = SlotState(slots, max_len, cache.page_size)
        self._taken = 0  # pages below this one have memory
        self._last_tokens = torch.zeros(slots + 1, dtype=torch.int64, device=model.device)  # the last one is nobody's
        self._sampler = Sampler(self._slots, kernels, model.vocab_size, model.device)
        self._graphs: StepGraphs | None = None
        self._in_one_go: StepPass | None = None
        self._last: Arriving | None = None  # of the last launch
        self._ran_dry = True
        if capture is not None:
            mirror = DeviceSlots(self._slots, self._last_tokens)
            self._graphs = StepGraphs(model, cache, kernels, mirror, max_len, capture)
        else:
            state = StepState(self._slots, self._last_tokens, cache.k, cache.v)
            self._in_one_go = model.prepare_step(state, kernels)

    def record(self, progress: Callable[[int, int], None]) -> None:
        """Record steps, where they are to be."""
        if self._graphs:
            self._graphs.record(progress)

    @property
    def has_recordings(self) -> bool:
        """Return whether a step has been recorded."""
        return self._graphs is not None and self._graphs.has_recordings

    @property
    def runs_ahead(self) -> bool:
        """On a GPU, which computes while we go on."""
        return self._model.device.type == "cuda"

    @property
    def recorded_tokens(self) -> int:
        """Up to so many, rows and prompt tokens together, a step is a recorded one: one pass over the weights, launched
        at once. Of a larger one only the rows are. 0: no step is."""
        return self._graphs.most_rows if self._graphs else 0

    @property
    def ran_dry(self) -> bool:
        """See `engine.engine.Runner`."""
        return self._ran_dry

    def launch(self, batch: Batch) -> Callable[[], Outcome]:
        """Begin one step."""
        if self._swap.is_under_way or batch.swap_out or batch.copies or batch.swap_in or batch.joins:
            self._prepare(batch)
        self._slots.apply(batch)
        if self._in_one_go and not len(self._slots.demanding(batch.sampled)):
            tokens, broken = self._in_one_go(batch.decodes, batch.chunks)
            outcome = Outcome(tuple(map(Sampled, tokens)), tuple(broken))
            return lambda: outcome
        return self._launch(batch)

    @torch.inference_mode()
    def _prepare(self, batch: Batch) -> None:
        """Moves in this order, which `engine.scheduling.moves` explains, and what those who join ask for."""
        self._swap.land()
        if batch.swap_out:
            self._swap.out(batch.swap_out)
        if batch.copies:
            self._cache.copy_pages(*zip(*batch.copies, strict=True))
        if batch.swap_in:
            self._swap.back(batch.swap_in)
        if batch.joins:
            self._sampler.join(batch.joins)
            slots = np.array([join.slot for join in batch.joins], np.int64)
            last = np.array([join.tokens[-1] for join in batch.joins], np.int64)
            self._last_tokens.index_copy_(0, *to_device((slots, last), self._model.device))

    @torch.inference_mode()
    def _launch(self, batch: Batch) -> Callable[[], Outcome]:
        """What of it is recorded, and the rest operation by operation."""
        drawn: list[Drawn] = []
        broken: list[Tensor] = []  # of each row that chunks have in it, whether it has a NaN
        rows = [chunk.length for chunk in batch.chunks]
        left = batch
        if self._graphs:
            self._graphs.slots.apply(batch)
            left = self._replay(self._graphs, batch, drawn, broken)
            if not left.chunks:
                rows = [chunk.length - chunk.samples for chunk in batch.chunks]
        if left.num_tokens:
            self._compute(left, drawn, broken)
        wanted = [*broken, *(tensor for some in drawn for tensor in some.tensors)]
        self._ran_dry = self._last is None or self._last.are_there
        self._last = Arriving(wanted, self._model.device)
        return _Step(self._last, drawn, tuple(rows) if broken else ())

    def take_memory(self, pages: int) -> bool:
        """See `engine.engine.Runner`. A GPU's cache has its memory from the beginning."""
        page_bytes = self._cache.data[0].nbytes
        first, last = max(pages, self._taken), min(self._cache.num_pages, pages + AHEAD // page_bytes)
        if first >= last or self._cache.device.type != "cpu":
            return False
        self._taken = min(last, first + -(-PIECE // page_bytes))
        self._cache.data[first : self._taken].zero_()
        return True

    def _replay(self, graphs: StepGraphs, batch: Batch, drawn: list[Drawn], broken: list[Tensor]) -> Batch:
        """All of it, or else its decode rows, by a recording; returns what is left. Who asks for more than that does is
        sampled again, from the same hidden states."""
        slots, prompts, left, shape = batch.sampled, None, Batch(step=batch.step), None
        sampled = np.array(slots, np.int64)
        if batch.num_tokens <= graphs.most_rows:
            prompts = prompt_tokens(batch.chunks, len(slots), self._slots)
            shape = self._find(graphs, sampled, prompts)
        if shape is None:
            slots, prompts, left = list(batch.decodes), None, replace(batch, decodes=())
            sampled = np.array(slots, np.int64)
            shape = self._find(graphs, sampled, prompts)
        if shape is None:
            return batch
        made, hidden, has_nan = graphs.run(shape, sampled, prompts)
        if len(rows := self._slots.demanding(slots)):
            (where,) = to_device((rows,), self._model.device)
            logits = self._model.compute_logits(hidden[where])
            again = self._sampler.sample(logits, self._sampler.parameters(sampled[rows]))
            self._last_tokens.index_copy_(0, again.slots, again.token_ids.clamp(min=0))
            made = made.replaced(rows, where, again)
        self._slots.advance(sampled)
        drawn.append(made)
        if prompts:
            broken.append(has_nan)
        return left

    def _find(self, graphs: StepGraphs, sampled: Ints, prompts: PromptTokens | None) -> Shape | None:
        """A recording for them, if there is one."""
        rows, longest, tiles = len(sampled), int(self._slots.lengths[sampled].max(initial=1)), 0
        if prompts:
            rows, longest = rows + len(prompts.slots), max(longest, 1 + int(prompts.positions.max()))
            tiles = len(prompts.tiles)
        return graphs.find(rows, longest, self._slots.are_filtered(sampled), tiles) if rows else None

    def _compute(self, batch: Batch, drawn: list[Drawn], broken: list[Tensor]) -> None:
        """Operation by operation."""
        inputs = pack(batch, self._slots, self._last_tokens, self._cache.page_size)
        sampled = np.array(batch.sampled, np.int64)
        # Before the weights are read, after which nothing that we need is in a cache any more.
        parameters = self._sampler.parameters(sampled) if len(sampled) else None
        hidden = self._model.forward(inputs, self._cache, self._kernels)
        if batch.chunks:  # all of their rows: behind a window the last ones have numbers again
            broken.append(hidden[len(batch.decodes) :].amax(dim=1).isnan())  # of a row with NaN that is the largest
        if parameters is None:
            return
        if inputs.logit_rows is not None:
            hidden = hidden[inputs.logit_rows]
        made = self._sampler.sample(self._model.compute_logits(hidden), parameters)
        self._last_tokens.index_copy_(0, made.slots, made.token_ids.clamp(min=0))  # of a broken row any will do
        self._slots.advance(sampled)
        if self._graphs:
            self._graphs.slots.advance(made.slots)
        drawn.append(made)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step under way; called, it waits."""

    arriving: Arriving
    drawn: list[Drawn]
    rows: tuple[int, ...]  # of each chunk, that are told of whether they are broken

    def __call__(self) -> Outcome:
        tensors = iter(self.arriving.wait())
        broken: tuple[bool, ...] = ()
        if self.rows:
            of_chunk = np.repeat(np.arange(len(self.rows)), self.rows)
            counts = np.bincount(of_chunk, next(tensors).numpy(), minlength=len(self.rows))
            broken = tuple((counts > 0).tolist())
        sampled = [one for some in self.drawn for one in some.read([next(tensors) for _ in some.tensors])]
        return Outcome(tuple(sampled), broken)
