"""Conversion of a batch into model inputs: `pack` for steps that are not recorded, `prompt_tokens` for recorded steps.

`Rows` in kernels/cpu/source/step.cpp does the same as `pack`, except that rows of drafts stay chunks.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from engine.execution.drafted_rows import FIRST, SampledRows
from engine.execution.graphs import PromptTokens
from engine.execution.inputs import ModelInputs
from engine.execution.slots import Ints, SlotState
from engine.execution.transfer import to_device
from engine.scheduling.batch import Batch, Chunk
from kernels.query_tiles import query_tiles

EMPTY_INTS = np.zeros(0, np.int64)
EMPTY_TABLE = np.zeros((0, 0), np.int32)


def pack(
    batch: Batch, slots: SlotState, last_tokens: Tensor, page_size: int, sampled: SampledRows | None = None
) -> ModelInputs:
    """Return the decode rows followed by the chunks in order; only the page tables' width is padded.

    last_tokens[slots] int64: each slot's last token, on the computing device. sampled: the sampled rows, if some slots
    have drafts. Their rows are then decode rows too, after the others: attention reads nothing after a row's own
    position, where values of a wrong draft may be NaN. Costs a few gathers for all decodes together, a few for each
    chunk, and one transfer.
    """
    plain = decodes = np.array(batch.decodes, np.int64)
    contexts, chunks, drafted = slots.lengths[decodes], batch.chunks, None
    if sampled is not None:
        drafted = sampled.select(slice(len(sampled.slots) - (batch.rows - len(plain)), None))
        chunks = tuple([chunk for chunk in chunks if not chunk.drafts])
        decodes = np.concatenate([plain, drafted.slots])
        contexts = np.concatenate([contexts, slots.lengths[drafted.slots] + drafted.offsets])
    slot_of_row, positions = decodes, contexts - 1
    chunk_tokens, chunk_table, logit_rows = EMPTY_INTS, EMPTY_TABLE, EMPTY_INTS
    starts = np.zeros(1, np.int64)
    ends = tuple(chunk.start + chunk.length for chunk in chunks)
    if chunks:  # skipped in most steps
        slot_of_row = np.concatenate([decodes, *(np.full(chunk.length, chunk.slot) for chunk in chunks)])
        ranges = [np.arange(chunk.start, chunk.start + chunk.length) for chunk in chunks]
        positions = np.concatenate([positions, *ranges])
        chunk_tokens = slots.tokens[slot_of_row[len(decodes) :], positions[len(decodes) :]]
        starts = np.cumsum([0, *(chunk.length for chunk in chunks)])
        chunk_slots = np.array([chunk.slot for chunk in chunks], np.int64)
        chunk_table = _tables(slots, chunk_slots, np.array(ends, np.int64), page_size)
        sampling_rows = [len(decodes) + starts[i + 1] - 1 for i, chunk in enumerate(chunks) if chunk.samples]
        logit_rows = np.concatenate(  # in the order of `Batch.sampled_rows`
            [np.arange(len(plain)), np.array(sampling_rows, np.int64), np.arange(len(plain), len(decodes))]
        )
    pages = slots.page_table[slot_of_row, positions // page_size].astype(np.int64)

    decode_slots, prompt_ids, position_ids, cache_positions, decode_table, decode_lens, prefill_table, logit_index = (
        to_device(
            (
                decodes,
                chunk_tokens,
                positions,
                pages * page_size + positions % page_size,
                _tables(slots, decodes, contexts, page_size),
                contexts.astype(np.int32),
                chunk_table,
                logit_rows,
            ),
            last_tokens.device,
        )
    )
    decode_ids = last_tokens.index_select(0, decode_slots)
    if drafted is not None:
        (reads,) = to_device((np.concatenate([np.full(len(plain), FIRST), drafted.reads]),), last_tokens.device)
        decode_ids = torch.where(reads == FIRST, decode_ids, reads)
    return ModelInputs(
        token_ids=torch.cat((decode_ids, prompt_ids)) if chunks else decode_ids,
        positions=position_ids,
        slot_mapping=cache_positions,
        num_decodes=len(decodes),
        decode_page_table=decode_table,
        decode_context_lens=decode_lens,
        prefill_page_table=prefill_table,
        prefill_query_starts=tuple(starts.tolist()),
        prefill_context_lens=ends,
        logit_rows=logit_index if chunks else None,
    )


def prompt_tokens(chunks: Seq[Chunk], first: int, slots: SlotState) -> PromptTokens | None:
    """Return the prompt tokens of a recorded step, beginning at its row `first`; None if there are none.

    Excludes the last token of a chunk that samples: like a decode row's token, it is known on the device.
    """
    tiles, slot_of_row, positions = [], [], []
    row = first
    for chunk in chunks:
        if length := chunk.length - chunk.samples:
            tiles.append((row, row, length, chunk.start))
            slot_of_row.append(np.full(length, chunk.slot, np.int64))
            positions.append(np.arange(chunk.start, chunk.start + length))
            row += length
    if not tiles:
        return None
    row_slots, row_positions = np.concatenate(slot_of_row), np.concatenate(positions)
    return PromptTokens(row_slots, row_positions, slots.tokens[row_slots, row_positions], query_tiles(tiles))


def _tables(slots: SlotState, slot_ids: Ints, context_lens: Ints, page_size: int) -> np.ndarray:
    """Return the page tables of the slots `slot_ids`, as wide as the longest context needs."""
    width = -(-int(context_lens.max(initial=0)) // page_size)
    return slots.page_table[slot_ids, :width]
