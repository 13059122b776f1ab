"""A step as one launch: from embedding to sampled token and the slots' new state (CUDA graphs).

A step of few rows is hundreds of kernels of a few microseconds, which no host launches as fast as a GPU runs them. So
they are recorded once for each number of rows and width of the page table that is worth one, and replayed. Prompts ride
in it as rows of their own, up to PROMPT_ROWS of them: the weights are read once for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, takewhile
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.execution.cache import KVCache
from engine.execution.device_slots import DeviceSlots
from engine.execution.models.interface import Model
from engine.execution.sampler import Drawn
from engine.execution.slots import Ints
from engine.execution.transfer import Mirror
from kernels.interface import Kernels
from kernels.query_tiles import COLUMNS, QUERIES, Tile
from kernels.slots import PromptRows

# Turns a function that computes on fixed tensors into one that does it again.
Capture = Callable[[Callable[[], None]], Callable[[], None]]

LEAST_WIDTH = 512  # tokens a row's page table holds at least; then twice as many, and so on
PROMPT_ROWS = 512  # beside one for every slot; with as many a GPU multiplies for longer than it reads weights
LEAST_PROMPT_ROWS = 16  # a step with fewer is filled up to it
SHORT_TILES = 32  # of less than all their queries: as many prompts at least can be in a step


def record(step: Callable[[], object], stream: torch.cuda.Stream, pool: Any) -> Callable[[], None]:
    """What replays all that `step` launches, as one CUDA graph, recorded on `stream`, whose memory is of `pool` (a
    `torch.cuda.graph_pool_handle()`).

    `torch.cuda.graph` does the same, but gives back all memory that nobody uses first, of device and host, each of some
    hundred times; and where a recording fails it leaves the thread on that stream and all further memory in that pool.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool)
        try:
            step()
        finally:
            try:
                graph.capture_end()
            except RuntimeError:  # such as something that cannot be recorded, of which torch is told here
                torch._C._cuda_endAllocateToPool(stream.device.index, pool)
                torch._C._cuda_releasePool(stream.device.index, pool)
                raise
    return graph.replay


class CudaCapture:
    """A `Capture` that records a CUDA graph. All graphs share one pool of memory: only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        """`step` is run before, on the stream on which it is recorded: kernels are compiled, and libraries, which have
        working memory for each stream, find theirs outside the pool. It is replayed once, as a driver sends a graph to
        the device when it is first launched: nobody waits for that later."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
        current.wait_stream(self._stream)
        replay = record(step, self._stream, self._pool)
        replay()
        return replay


class Shape(NamedTuple):
    """Of a recording."""

    rows: int
    width: int  # of the page table
    filtered: bool  # whether the sampler looks for filters, which takes seven kernels
    prompts: bool  # whether some rows are tokens of prompts; such a recording always looks for filters

    @property
    def tiles(self) -> int:
        """Of queries of prompts, that it attends for."""
        return -(-self.rows // QUERIES) + SHORT_TILES if self.prompts else 0


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """P tokens of prompts that ride in a step, behind the rows that are sampled: their slots, positions and ids, each
    [P] int64, and their tiles, whose rows count from the first of the step."""

    slots: Ints
    positions: Ints
    token_ids: Ints
    tiles: list[Tile]


class StepGraphs:
    """Recorded steps for up to all slots at any context."""

    def __init__(
        self, model: Model, cache: KVCache, kernels: Kernels, slots: DeviceSlots, max_len: int, capture: Capture
    ) -> None:
        self.slots = slots
        self._model, self._cache, self._kernels, self._capture = model, cache, kernels, capture
        self.most_rows = slots.nobody + PROMPT_ROWS
        self._rows = {
            False: tuple(row_counts(1, slots.nobody)),
            True: tuple(row_counts(LEAST_PROMPT_ROWS, self.most_rows)),
        }
        self._widths = page_widths(max_len, cache.page_size)
        # What a replay reads: of each row the slot, and the position and id of a prompt's token; whom the first rows
        # are sampled for where others follow; and the tiles of prompts.
        largest = Shape(self.most_rows, 0, True, True)
        self._read = Mirror(
            model.device,
            which=((largest.rows,), np.int64),
            positions=((largest.rows,), np.int64),
            token_ids=((largest.rows,), np.int64),
            drawn_for=((slots.nobody,), np.int64),
            tiles=((largest.tiles, COLUMNS), np.int32),
        )
        self._read.host["which"][:] = self._read.host["drawn_for"][:] = slots.nobody
        self._read.host["positions"][:] = -1
        self._read.send()
        self._ids = torch.zeros(slots.nobody, dtype=torch.int64, device=model.device)
        self._broken = torch.zeros(self.most_rows, dtype=torch.bool, device=model.device)
        self._replay: dict[Shape, Callable[[], None]] = {}
        self._hidden: dict[Shape, Tensor] = {}  # each recording's own, which its replays write anew

    @torch.inference_mode()
    def record(self, progress: Callable[[int, int], None]) -> None:
        """All of them, the largest first, whose memory the others share."""
        kinds = ((True, True), (True, False), (False, False))  # filtered, prompts
        shapes = [Shape(rows, width, *kind) for kind in kinds for rows in self._rows[kind[1]] for width in self._widths]
        shapes.sort(reverse=True)
        for done, shape in enumerate(shapes):
            progress(done, len(shapes))
            self._replay[shape] = self._capture(partial(self._step, shape))
        progress(len(shapes), len(shapes))

    @property
    def has_recordings(self) -> bool:
        """Return whether a shape has been recorded."""
        return bool(self._replay)

    def find(self, rows: int, longest: int, filtered: bool, tiles: int) -> Shape | None:
        """The smallest recording of so many rows, the longest of which has `longest` tokens, and so many tiles of
        prompts. None: there is none that is large enough."""
        width = next(width for width in self._widths if width * self._cache.page_size >= longest)
        has_prompts = tiles > 0
        enough = (most for most in self._rows[has_prompts] if most >= rows)
        shapes = (Shape(most, width, filtered or has_prompts, has_prompts) for most in enough)
        return next((shape for shape in shapes if shape.tiles >= tiles), None)

    def run(self, shape: Shape, sampled: Ints, prompts: PromptTokens | None) -> tuple[Drawn, Tensor, Tensor]:
        """One token for each slot in sampled[S], whose last token is the only one not computed yet, by their filters
        alone; and the tokens of prompts, for which nothing is sampled. Also returns the hidden states [S, H] that was
        drawn from, and of each of the P tokens whether it has a NaN, [P] bool; both are overwritten by the next
        replay."""
        count = len(sampled)
        total = count + (len(prompts.slots) if prompts else 0)
        which = np.full(shape.rows, self.slots.nobody, np.int64)
        which[:count] = sampled
        if prompts:
            which[count:total] = prompts.slots
            self._write(prompts, sampled)
        sent = self._read.host["which"][: shape.rows]
        if prompts or not np.array_equal(which, sent):
            sent[:] = which
            self._read.send()
        self._replay[shape]()
        drawn_for = self._read.there["drawn_for" if shape.prompts else "which"]
        return Drawn(drawn_for[:count], self._ids[:count]), self._hidden[shape][:count], self._broken[count:total]

    def _write(self, prompts: PromptTokens, sampled: Ints) -> None:
        """What only recordings with prompts read. Where it is nobody's row nothing looks at an id."""
        read, count, total = self._read.host, len(sampled), len(sampled) + len(prompts.slots)
        read["drawn_for"][:] = self.slots.nobody
        read["drawn_for"][:count] = sampled
        read["positions"][:] = -1
        read["positions"][count:total] = prompts.positions
        read["token_ids"][count:total] = prompts.token_ids
        read["tiles"][:] = 0
        read["tiles"][: len(prompts.tiles)] = prompts.tiles

    def _step(self, shape: Shape) -> None:
        """What is recorded: reads what was sent, writes `_ids`, `_hidden`, `_broken` and the slots."""
        read, size = self._read.there, self._cache.page_size
        which = read["which"][: shape.rows]
        if shape.prompts:
            prompts = PromptRows(read["positions"][: shape.rows], read["token_ids"][: shape.rows])
            tiles = read["tiles"][: shape.tiles]
            inputs = self.slots.inputs(self._kernels, which, shape.width, size, prompts, tiles)
        else:
            inputs = self.slots.inputs(self._kernels, which, shape.width, size)
        hidden = self._hidden[shape] = self._model.forward(inputs, self._cache, self._kernels)
        if shape.prompts:
            which = read["drawn_for"][: shape.rows]  # no more than there are slots
            largest = hidden.amax(dim=1)  # of a row with NaN that is it, and no NaN equals itself
            torch.ne(largest, largest, out=self._broken[: shape.rows])
        logits = self._model.compute_logits(hidden[: len(which)])
        self._kernels.sample_slots(logits, self.slots.tensors, which, self._ids[: len(which)], shape.filtered)


def row_counts(least: int, most: int) -> Iterator[int]:
    """From `least` on 1, 2, 4, 8, then every doubling and the middle between two, from 256 on, where rows are no longer
    next to free, their quarters; and `most`, which is the last."""
    for size in (1 << power for power in count()):
        parts = 1 if size < 8 else 2 if size < 256 else 4
        for rows in range(size, 2 * size, size // parts):
            if rows >= most:
                yield most
                return
            if rows >= least:
                yield rows


def page_widths(max_len: int, page_size: int) -> tuple[int, ...]:
    """Pages of LEAST_WIDTH tokens, of twice as many and so on, up to those of a whole context."""
    most = -(-max_len // page_size)
    widths = (-(-LEAST_WIDTH * (1 << power) // page_size) for power in range(32))
    return (*takewhile(lambda width: width < most, widths), most)
