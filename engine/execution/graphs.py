"""The decode step as one launch: from embedding to sampled token and the slots' new state (CUDA graphs).

A step of few rows is hundreds of kernels of a few microseconds, which no host launches as fast as a GPU runs them. So
they are recorded once for each number of rows and width of the page table that is worth one, and replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain, takewhile
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.execution.cache import KVCache
from engine.execution.device_slots import DeviceSlots
from engine.execution.models.interface import Model
from engine.execution.sampler import Drawn
from engine.execution.slots import Ints
from engine.execution.transfer import to_device
from kernels.interface import Kernels

# Turns a function that computes on fixed tensors into one that does it again.
Capture = Callable[[Callable[[], None]], Callable[[], None]]

LEAST_WIDTH = 512  # tokens a row's page table holds at least; then twice as many, and so on


class CudaCapture:
    """A `Capture` that records a CUDA graph. All graphs share one pool of memory: only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        """`step` is run before: kernels are compiled and libraries find their working memory."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        return graph.replay


class Shape(NamedTuple):
    """Of a recording."""

    rows: int
    width: int  # of the page table
    filtered: bool  # whether the sampler looks for filters, which takes seven kernels


class DecodeGraphs:
    """Recorded decode steps for up to all slots at any context."""

    def __init__(
        self, model: Model, cache: KVCache, kernels: Kernels, slots: DeviceSlots, max_len: int, capture: Capture
    ) -> None:
        self.slots = slots
        self._model, self._cache, self._kernels, self._capture = model, cache, kernels, capture
        self._rows = row_counts(slots.nobody)
        self._widths = page_widths(max_len, cache.page_size)
        most = self._rows[-1]
        self._which = torch.full((most,), slots.nobody, dtype=torch.int64, device=model.device)
        self._ids = torch.zeros_like(self._which)
        self._sent: Ints = np.full(most, slots.nobody, np.int64)
        self._replay: dict[Shape, Callable[[], None]] = {}
        self._hidden: dict[Shape, Tensor] = {}  # each recording's own, which its replays write anew

    @torch.inference_mode()
    def record(self, progress: Callable[[int, int], None]) -> None:
        """All of them, the largest first, whose memory the others share."""
        shapes = [
            Shape(rows, width, filtered)
            for rows in reversed(self._rows)
            for width in reversed(self._widths)
            for filtered in (True, False)
        ]
        for done, shape in enumerate(shapes):
            progress(done, len(shapes))
            self._replay[shape] = self._capture(partial(self._step, shape))
        progress(len(shapes), len(shapes))

    def run(self, decodes: Ints, longest: int, filtered: bool) -> tuple[Drawn, Tensor]:
        """One token for each of decodes[B], the longest of which has `longest` tokens, by their filters alone; and the
        hidden states [B, H] it was drawn from, which the next replay overwrites. filtered: whether any has one."""
        count = len(decodes)
        rows = next(rows for rows in self._rows if rows >= count)
        width = next(width for width in self._widths if width * self._cache.page_size >= longest)
        wanted = np.full(rows, self.slots.nobody, np.int64)
        wanted[:count] = decodes
        if not np.array_equal(wanted, self._sent[:rows]):
            self._sent[:rows] = wanted
            self._which[:rows].copy_(to_device((wanted,), self._which.device)[0])
        shape = Shape(rows, width, filtered)
        self._replay[shape]()
        return Drawn(self._which[:count], self._ids[:count]), self._hidden[shape][:count]

    def _step(self, shape: Shape) -> None:
        """What is recorded: reads `_which`, writes `_ids`, `_hidden` and the slots."""
        which, ids = self._which[: shape.rows], self._ids[: shape.rows]
        inputs = self.slots.decode_inputs(self._kernels, which, shape.width, self._cache.page_size)
        hidden = self._hidden[shape] = self._model.forward(inputs, self._cache, self._kernels)
        logits = self._model.compute_logits(hidden)
        self._kernels.sample_slots(logits, self.slots.tensors, which, ids, shape.filtered)


def row_counts(slots: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then every doubling and the middle between two, up to the first that all slots fit in."""
    doublings = chain((1, 2, 4), (size for power in range(3, 32) for size in (1 << power, 3 << power - 1)))
    return (*takewhile(lambda size: size < slots, doublings), slots)


def page_widths(max_len: int, page_size: int) -> tuple[int, ...]:
    """Pages of LEAST_WIDTH tokens, of twice as many and so on, up to those of a whole context."""
    most = -(-max_len // page_size)
    widths = (-(-LEAST_WIDTH * (1 << power) // page_size) for power in range(32))
    return (*takewhile(lambda width: width < most, widths), most)
