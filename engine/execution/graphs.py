"""Recorded steps (CUDA graphs): one launch from the embedding to the sampled token and the new slot state.

A step of few rows consists of hundreds of kernels of a few microseconds, and no host launches them as fast as a GPU
runs them. Steps are therefore recorded, once for each useful number of rows and page-table width, and replayed. Up to
PROMPT_ROWS prompt tokens piggyback as rows of their own, so that the weights are read once for both.
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

from engine.drafting.speculator import MAX_DRAFTS
from engine.execution.cache import KVCache
from engine.execution.device_slots import DeviceSlots
from engine.execution.drafted_rows import SampledRows
from engine.execution.models.interface import Model
from engine.execution.sampler import SampledTokens
from engine.execution.slots import Ints
from engine.execution.transfer import PinnedBuffer, to_device
from kernels.decoder import RowMasks
from kernels.interface import Kernels
from kernels.query_tiles import MAX_TILE_QUERIES, TILE_COLUMNS, Tile
from kernels.slots import NO_DRAFT_TOKEN, DraftRows, PromptRows, SlotMasks

# Runs and records a function that computes on fixed tensors; returns a function that replays it.
Capture = Callable[[Callable[[], None]], Callable[[], None]]

MIN_WIDTH_TOKENS = 512  # of the smallest page-table width; further widths double
MAX_PROMPT_ROWS = 512  # in addition to one per slot; with this many, a GPU multiplies for longer than it reads weights
MIN_PROMPT_ROWS = 16  # a step with fewer is padded
DRAFT_ROWS = (2, 4, 8, 16, 32, 64)  # of steps with drafts, which fewer sequences have as rows cost more
MAX_SHORT_TILES = 32  # tiles with fewer than QUERIES queries; a step can have at least this many prompts


def record(step: Callable[[], object], stream: torch.cuda.Stream, pool: Any) -> Callable[[], None]:
    """Record all launches of `step` as one CUDA graph and return its replay function.

    Records on `stream`; memory comes from `pool` (a `torch.cuda.graph_pool_handle()`). `torch.cuda.graph` does the
    same, but first releases all unused device and host memory, for each of several hundred recordings. After a failed
    recording it also leaves the thread on that stream and all further allocations in that pool.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool)
        try:
            step()
        finally:
            try:
                graph.capture_end()
            except RuntimeError:  # for example an operation that cannot be recorded, which torch reports here
                torch._C._cuda_endAllocateToPool(stream.device.index, pool)
                torch._C._cuda_releasePool(stream.device.index, pool)
                raise
    return graph.replay


class CudaCapture:
    """`Capture` that records a CUDA graph. All graphs share one memory pool: only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        """Run, record and replay `step`.

        The first run, on the recording stream, compiles kernels and lets libraries allocate their workspaces, which
        exist per stream, outside the pool. The replay uploads the graph to the device, which a driver does on the first
        launch, so that no later step waits for it.
        """
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
        current.wait_stream(self._stream)
        replay = record(step, self._stream, self._pool)
        replay()
        return replay


class Shape(NamedTuple):
    """Shape of a recording."""

    rows: int
    width: int  # of the page table
    filtered: bool  # whether the sampler applies filters, which takes seven kernels
    prompts: bool  # whether some rows are prompt tokens; such a recording always applies filters
    drafts: bool = False  # whether slots may have several rows; such a recording always applies filters too

    @property
    def tiles(self) -> int:
        """Return the number of query tiles for prompts."""
        return -(-self.rows // MAX_TILE_QUERIES) + MAX_SHORT_TILES if self.prompts else 0


class ReplayedStep(NamedTuple):
    """Results of a replay for its S sampled rows, and whether each of P prompt tokens has a NaN, [P] bool.

    hidden: [S, H], overwritten by the next replay, like has_nan. reads: [S] int64, the drafts that the rows have read.
    matches: [S] int32, the match of the drafts that were looked up for the slot of each first row.
    """

    tokens: SampledTokens
    hidden: Tensor
    has_nan: Tensor
    reads: Tensor
    matches: Tensor


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """P prompt tokens in a step, after the sampled rows.

    Their slots, positions and IDs, each [P] int64, and their query tiles, whose rows count from the first row of the
    step.
    """

    slots: Ints
    positions: Ints
    token_ids: Ints
    tiles: list[Tile]


class StepGraphs:
    """Recorded steps for up to all slots at any context length."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        kernels: Kernels,
        slots: DeviceSlots,
        max_len: int,
        capture: Capture,
        *,
        has_drafts: bool,
    ) -> None:
        """has_drafts: steps with drafts are recorded too."""
        self.slots = slots
        self._model, self._cache, self._kernels, self._capture = model, cache, kernels, capture
        self.max_rows = slots.padding_slot + MAX_PROMPT_ROWS
        self._rows = {  # by kind, the last two fields of a shape
            (False, False): tuple(row_counts(1, slots.padding_slot)),
            (True, False): tuple(row_counts(MIN_PROMPT_ROWS, self.max_rows)),
            (False, True): DRAFT_ROWS if has_drafts else (),
        }
        self._widths = page_widths(max_len, cache.page_size)
        # Inputs of a replay: for each row the slot, and the position and ID of a prompt token; the slots to sample for,
        # which come first if prompt rows follow; the query tiles of prompts; and with drafts, the offset and ID of each
        # row's draft, and how many are looked up for its slot.
        max_drafted = max(self._rows[False, True], default=0)
        largest = Shape(self.max_rows, 0, True, True)
        self._inputs = PinnedBuffer(
            model.device,
            slot_ids=((largest.rows,), np.int64),
            positions=((largest.rows,), np.int64),
            token_ids=((largest.rows,), np.int64),
            sample_slots=((slots.padding_slot,), np.int64),
            offsets=((max_drafted,), np.int64),
            drafts=((max_drafted,), np.int64),
            lookups=((max_drafted,), np.int64),
            tiles=((largest.tiles, TILE_COLUMNS), np.int32),
        )
        self._inputs.host["slot_ids"][:] = self._inputs.host["sample_slots"][:] = slots.padding_slot
        self._inputs.host["positions"][:] = -1
        self._inputs.send()
        self._ids = torch.zeros(max(slots.padding_slot, max_drafted), dtype=torch.int64, device=model.device)
        self._masks = self._new_masks(slots.padding_slot + 1)
        # Of steps with drafts, in which a slot may have several masks, by row.
        self._row_masks = self._new_masks(max_drafted)
        self._row_ids = torch.arange(max_drafted, device=model.device)
        self._found = torch.zeros((max_drafted, MAX_DRAFTS), dtype=torch.int64, device=model.device)
        self._matches = torch.zeros(max_drafted, dtype=torch.int32, device=model.device)
        self._reads = torch.zeros(max_drafted, dtype=torch.int64, device=model.device)
        self._has_nan = torch.zeros(self.max_rows, dtype=torch.bool, device=model.device)
        self._replay: dict[Shape, Callable[[], None]] = {}
        self._hidden: dict[Shape, Tensor] = {}  # each recording's own output, overwritten by its replays

    def _new_masks(self, rows: int) -> SlotMasks:
        device, words = self._model.device, -(-self._model.vocab_size // 32)
        return SlotMasks(
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.zeros((rows, words), dtype=torch.int32, device=device),
        )

    @property
    def max_draft_rows(self) -> int:
        """Return the largest number of rows of a step with drafts; 0 if none is recorded."""
        return max(self._rows[False, True], default=0)

    @torch.inference_mode()
    def record(self, progress: Callable[[int, int], None]) -> None:
        """Record all shapes, the largest first, because the others share its memory."""
        kinds = ((True, True, False), (True, False, True), (True, False, False), (False, False, False))
        shapes = [
            Shape(rows, width, *kind) for kind in kinds for rows in self._rows[kind[1:]] for width in self._widths
        ]
        shapes.sort(reverse=True)
        for done, shape in enumerate(shapes):
            progress(done, len(shapes))
            self._replay[shape] = self._capture(partial(self._step, shape))
        progress(len(shapes), len(shapes))

    @property
    def has_recordings(self) -> bool:
        """Return whether a shape has been recorded."""
        return bool(self._replay)

    def find(self, rows: int, longest: int, filtered: bool, tiles: int, *, has_drafts: bool = False) -> Shape | None:
        """Return the smallest recording for `rows` rows with up to `longest` tokens and `tiles` query tiles of prompts.

        Returns None if no recording is large enough. has_drafts: some rows read drafts, and none is a prompt token.
        """
        width = next(width for width in self._widths if width * self._cache.page_size >= longest)
        has_prompts = tiles > 0
        counts = (most for most in self._rows[has_prompts, has_drafts] if most >= rows)
        filtered = filtered or has_prompts or has_drafts
        shapes = (Shape(most, width, filtered, has_prompts, has_drafts) for most in counts)
        return next((shape for shape in shapes if shape.tiles >= tiles), None)

    def run(
        self,
        shape: Shape,
        sampled: Ints,
        prompts: PromptTokens | None,
        masks: RowMasks | None,
        drafted: SampledRows | None = None,
    ) -> ReplayedStep:
        """Sample one token for each row of the slots sampled[S] with filters and masks only, and compute prompt tokens
        without sampling.

        masks: of some rows of `sampled`. drafted: the rows of `sampled`, if some have drafts. The last token of each
        sampled slot is the only one not computed yet.
        """
        count = len(sampled)
        total = count + (len(prompts.slots) if prompts else 0)
        slots = np.full(shape.rows, self.slots.padding_slot, np.int64)
        slots[:count] = sampled
        if prompts:
            slots[count:total] = prompts.slots
            self._write(prompts, sampled)
        if drafted is not None:
            self._inputs.host["offsets"][:] = 0  # of padding rows
            self._inputs.host["offsets"][:count] = drafted.offsets
            self._inputs.host["drafts"][:count] = drafted.reads
            self._inputs.host["lookups"][:] = 0
            self._inputs.host["lookups"][:count] = drafted.lookups
        sent = self._inputs.host["slot_ids"][: shape.rows]
        if prompts or drafted is not None or not np.array_equal(slots, sent):
            sent[:] = slots
            self._inputs.send()
        filled = self._row_masks if shape.drafts else self._masks
        if masks is not None:
            rows = masks.rows if shape.drafts else sampled[masks.rows]
            masked, words = to_device((rows, masks.words), self._ids.device)
            filled.words.index_copy_(0, masked, words)
            filled.is_masked.index_fill_(0, masked, 1)
        self._replay[shape]()
        if masks is not None:
            filled.is_masked.zero_()
        sample_slots = self._inputs.device["sample_slots" if shape.prompts else "slot_ids"]
        tokens = SampledTokens(sample_slots[:count], self._ids[:count])
        hidden, has_nan = self._hidden[shape][:count], self._has_nan[count:total]
        return ReplayedStep(tokens, hidden, has_nan, self._reads[:count], self._matches[:count])

    def _write(self, prompts: PromptTokens, sampled: Ints) -> None:
        """Write the inputs that only recordings with prompts read. Token IDs of padding rows are not read."""
        inputs, count, total = self._inputs.host, len(sampled), len(sampled) + len(prompts.slots)
        inputs["sample_slots"][:] = self.slots.padding_slot
        inputs["sample_slots"][:count] = sampled
        inputs["positions"][:] = -1
        inputs["positions"][count:total] = prompts.positions
        inputs["token_ids"][count:total] = prompts.token_ids
        inputs["tiles"][:] = 0
        inputs["tiles"][: len(prompts.tiles)] = prompts.tiles

    def _step(self, shape: Shape) -> None:
        """Compute a step from the sent inputs; this function is recorded.

        Writes `_ids`, `_hidden`, `_has_nan` and the slots.
        """
        read, size = self._inputs.device, self._cache.page_size
        row_slots = read["slot_ids"][: shape.rows]
        drafts = self._draft_rows(shape.rows) if shape.drafts else None
        if shape.prompts:
            prompts = PromptRows(read["positions"][: shape.rows], read["token_ids"][: shape.rows])
            tiles = read["tiles"][: shape.tiles]
            inputs = self.slots.inputs(self._kernels, row_slots, shape.width, size, prompts, tiles)
        else:
            inputs = self.slots.inputs(self._kernels, row_slots, shape.width, size, drafts)
        hidden = self._hidden[shape] = self._model.forward(inputs, self._cache, self._kernels)
        if shape.prompts:
            row_slots = read["sample_slots"][: shape.rows]  # no longer than the number of slots
            largest = hidden.amax(dim=1)  # the maximum of a row with NaN is NaN, which does not equal itself
            torch.ne(largest, largest, out=self._has_nan[: shape.rows])
        logits = self._model.compute_logits(hidden[: len(row_slots)])
        if drafts is not None:
            self._kernels.mask_slots(logits, self._row_masks, self._row_ids[: shape.rows])
        else:
            self._kernels.mask_slots(logits, self._masks, row_slots)
        ids = self._ids[: len(row_slots)]
        self._kernels.sample_slots(logits, self.slots.tensors, row_slots, ids, shape.filtered, drafts)

    def _draft_rows(self, rows: int) -> DraftRows:
        """Return the drafts that the first rows read, sent or looked up. Writes `_found`, `_matches` and `_reads`."""
        read, reads = self._inputs.device, self._reads[:rows]
        offsets, sent = read["offsets"][:rows], read["drafts"][:rows]
        if self.slots.tensors.tokens is None:
            reads.copy_(sent)
        else:
            found = self._found[:rows]
            limits = read["lookups"][:rows]
            self._kernels.draft_slots(self.slots.tensors, read["slot_ids"][:rows], limits, found, self._matches[:rows])
            is_looked_up = (offsets > 0) & (sent == NO_DRAFT_TOKEN)
            own = found[self._row_ids[:rows] - offsets, (offsets - 1).clamp(min=0)]
            reads.copy_(torch.where(is_looked_up, own, sent))
        return DraftRows(offsets, reads)


def row_counts(least: int, most: int) -> Iterator[int]:
    """Yield row counts of recordings from `least` to `most`.

    Below 8 these are powers of two; below 256 also the middle between two powers; from 256 on, where rows are no longer
    nearly free, quarters. `most` is the last.
    """
    for power in (1 << power for power in count()):
        steps = 1 if power < 8 else 2 if power < 256 else 4
        for rows in range(power, 2 * power, power // steps):
            if rows >= most:
                yield most
                return
            if rows >= least:
                yield rows


def page_widths(max_len: int, page_size: int) -> tuple[int, ...]:
    """Return page-table widths of MIN_WIDTH_TOKENS tokens and its doublings, up to the maximum context length."""
    most = -(-max_len // page_size)
    widths = (-(-MIN_WIDTH_TOKENS * (1 << power) // page_size) for power in range(32))
    return (*takewhile(lambda width: width < most, widths), most)
