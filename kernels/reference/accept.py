"""Acceptance of drafts on the device that sampled the tokens, without waiting for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.slots import DraftRows, SlotTensors


@dataclass(frozen=True, slots=True)
class CountedRows:
    """Rows of a step with drafts whose tokens count, and the last one of each slot: both [B] bool.

    offsets: [B] int64, the number of drafts before each row.
    """

    is_counted: Tensor
    is_last: Tensor
    offsets: Tensor


def count_rows(ids: Tensor, drafts: DraftRows) -> CountedRows:
    """Return the rows of the sampled ids[B] int64 that count.

    The first row of a slot counts in any case. Another one does if the draft that it reads is the token before it, the
    row before it counts, and neither the draft nor its own token is negative.
    """
    has_draft = drafts.offsets > 0
    is_right = (drafts.token_ids == ids.roll(1)) & (drafts.token_ids >= 0) & (ids >= 0)
    wrong = (has_draft & ~is_right).cumsum(0)
    first_rows = torch.arange(len(ids), device=ids.device) - drafts.offsets
    is_counted = wrong == wrong[first_rows]
    return CountedRows(is_counted, is_counted & ~(is_counted & has_draft).roll(-1), drafts.offsets)


def store_last(last_tokens: Tensor, slot_ids: Tensor, ids: Tensor, rows: CountedRows) -> None:
    """Store the last of ids[B] that counts for each of the slots slot_ids[B], except for padding.

    last_tokens: [slots + 1] int64, that of padding at the end. A negative ID is stored as 0, a valid embedding index.
    """
    padding_slot = len(last_tokens) - 1
    is_stored = rows.is_last & (slot_ids != padding_slot)
    stored = torch.where(is_stored, ids.clamp(min=0), last_tokens[padding_slot])
    last_tokens.index_copy_(0, torch.where(is_stored, slot_ids, padding_slot), stored)


def append_tokens(slots: SlotTensors, slot_ids: Tensor, ids: Tensor, rows: CountedRows | None = None) -> None:
    """Append ids[B] to the tokens of the slots slot_ids[B], if these are kept. Call it before lengths advance.

    rows: those that count; None: all, one for each slot.
    """
    if slots.tokens is None:
        return
    positions, is_stored = slots.lengths.index_select(0, slot_ids), torch.ones_like(slot_ids, dtype=torch.bool)
    if rows is not None:
        positions, is_stored = positions + rows.offsets, rows.is_counted
    store_tokens(slots, slot_ids, positions, ids, is_stored)


def store_tokens(slots: SlotTensors, slot_ids: Tensor, positions: Tensor, ids: Tensor, is_stored: Tensor) -> None:
    """Store ids[B] at positions[B] of the kept tokens of the slots slot_ids[B], where is_stored[B] is set.

    A negative ID is stored as 0. Padding and positions after the last column are not stored: a slot may run on for a
    step after its sequence has ended.
    """
    assert slots.tokens is not None
    is_stored = is_stored & (slot_ids != slots.padding_slot) & (positions < slots.max_text)
    # Others write its present value to one place of padding, as the number of stored tokens is on the device.
    row, column = torch.where(is_stored, slot_ids, slots.padding_slot), torch.where(is_stored, positions, 0)
    values = torch.where(is_stored, ids.clamp(min=0).to(torch.int32), slots.tokens[slots.padding_slot, 0])
    slots.tokens.index_put_((row, column), values)
