"""pack: a batch of slots and chunks becomes flat tensors. The only packer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.execution.inputs import ModelInputs
from engine.execution.slots import Ints, SlotState
from engine.scheduling.batch import Batch


def pack(batch: Batch, slots: SlotState, page_size: int, device: torch.device) -> ModelInputs:
    """Decode rows first, then the chunks in order; nothing is padded but the page tables' width.

    Costs a few gathers for all decodes together and a few for each chunk.
    """
    decodes = np.array(batch.decodes, np.int64)
    decode_positions = slots.lengths[decodes] - 1
    rows = [decodes, *(np.full(chunk.length, chunk.slot) for chunk in batch.chunks)]
    ranges = [decode_positions, *(np.arange(chunk.start, chunk.start + chunk.length) for chunk in batch.chunks)]
    slot_of_row, positions = np.concatenate(rows), np.concatenate(ranges)
    pages = slots.page_table[slot_of_row, positions // page_size].astype(np.int64)

    starts = np.cumsum([0, *(chunk.length for chunk in batch.chunks)])
    ends = tuple(chunk.start + chunk.length for chunk in batch.chunks)
    chunk_slots = np.array([chunk.slot for chunk in batch.chunks], np.int64)
    sampling_rows = [len(decodes) + starts[i + 1] - 1 for i, chunk in enumerate(batch.chunks) if chunk.samples]

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

    return ModelInputs(
        token_ids=tensor(slots.tokens[slot_of_row, positions]),
        positions=tensor(positions),
        slots=tensor(pages * page_size + positions % page_size),
        num_decodes=len(decodes),
        decode_page_table=tensor(_tables(slots, decodes, decode_positions + 1, page_size)),
        decode_context_lens=tensor((decode_positions + 1).astype(np.int32)),
        prefill_page_table=tensor(_tables(slots, chunk_slots, np.array(ends, np.int64), page_size)),
        prefill_query_starts=tuple(starts.tolist()),
        prefill_context_lens=ends,
        logit_rows=tensor(np.concatenate([np.arange(len(decodes)), np.array(sampling_rows, np.int64)])),
    )


def _tables(slots: SlotState, which: Ints, context_lens: Ints, page_size: int) -> np.ndarray:
    """Page tables of `which`, as wide as the longest context needs."""
    width = -(-int(context_lens.max(initial=0)) // page_size)
    return slots.page_table[which, :width]
