"""A batch of slots and chunks becomes what a model is given: `pack` for operations one by one, which `Rows` in
kernels/cpu/source/step.cpp does too, and `prompt_tokens` for recorded steps."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from engine.execution.graphs import PromptTokens
from engine.execution.inputs import ModelInputs
from engine.execution.slots import Ints, SlotState
from engine.execution.transfer import to_device
from engine.scheduling.batch import Batch, Chunk
from kernels.query_tiles import query_tiles

NOTHING = np.zeros(0, np.int64)
NO_TABLE = np.zeros((0, 0), np.int32)


def pack(batch: Batch, slots: SlotState, last_tokens: Tensor, page_size: int) -> ModelInputs:
    """Decode rows first, then the chunks in order; nothing is padded but the page tables' width.

    last_tokens[slots] int64: each slot's last token, on the device that computes. Costs a few gathers for all decodes
    together and a few for each chunk, and one transfer.
    """
    decodes = np.array(batch.decodes, np.int64)
    contexts = slots.lengths[decodes]
    slot_of_row, positions = decodes, contexts - 1
    chunk_tokens, chunk_table, logit_rows = NOTHING, NO_TABLE, NOTHING
    starts = np.zeros(1, np.int64)
    ends = tuple(chunk.start + chunk.length for chunk in batch.chunks)
    if batch.chunks:  # which few steps have: what the others can do without is in here
        slot_of_row = np.concatenate([decodes, *(np.full(chunk.length, chunk.slot) for chunk in batch.chunks)])
        ranges = [np.arange(chunk.start, chunk.start + chunk.length) for chunk in batch.chunks]
        positions = np.concatenate([positions, *ranges])
        chunk_tokens = slots.tokens[slot_of_row[len(decodes) :], positions[len(decodes) :]]
        starts = np.cumsum([0, *(chunk.length for chunk in batch.chunks)])
        chunk_slots = np.array([chunk.slot for chunk in batch.chunks], np.int64)
        chunk_table = _tables(slots, chunk_slots, np.array(ends, np.int64), page_size)
        sampling_rows = [len(decodes) + starts[i + 1] - 1 for i, chunk in enumerate(batch.chunks) if chunk.samples]
        logit_rows = np.concatenate([np.arange(len(decodes)), np.array(sampling_rows, np.int64)])
    pages = slots.page_table[slot_of_row, positions // page_size].astype(np.int64)

    decode_slots, prompt_ids, position_ids, places, decode_table, decode_lens, prefill_table, wanted = to_device(
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
    decode_ids = last_tokens.index_select(0, decode_slots)
    return ModelInputs(
        token_ids=torch.cat((decode_ids, prompt_ids)) if batch.chunks else decode_ids,
        positions=position_ids,
        slots=places,
        num_decodes=len(decodes),
        decode_page_table=decode_table,
        decode_context_lens=decode_lens,
        prefill_page_table=prefill_table,
        prefill_query_starts=tuple(starts.tolist()),
        prefill_context_lens=ends,
        logit_rows=wanted if batch.chunks else None,
    )


def prompt_tokens(chunks: Seq[Chunk], first: int, slots: SlotState) -> PromptTokens | None:
    """What a recorded step reads of prompts, from its row `first` on; None: nothing. The last token of a chunk that
    samples is like a decode row's, known on the device, and is none of these."""
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
    where, at = np.concatenate(slot_of_row), np.concatenate(positions)
    return PromptTokens(where, at, slots.tokens[where, at], query_tiles(tiles))


def _tables(slots: SlotState, which: Ints, context_lens: Ints, page_size: int) -> np.ndarray:
    """Page tables of `which`, as wide as the longest context needs."""
    width = -(-int(context_lens.max(initial=0)) // page_size)
    return slots.page_table[which, :width]
