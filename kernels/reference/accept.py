"""Acceptance of drafts on the device that sampled the tokens, without waiting for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.slots import DraftRows


@dataclass(frozen=True, slots=True)
class CountedRows:
    """Rows of a step with drafts whose tokens count, and the last one of each slot: both [B] bool."""

    is_counted: Tensor
    is_last: Tensor


def count_rows(ids: Tensor, drafts: DraftRows) -> CountedRows:
    """Return the rows of the sampled ids[B] int64 that count.

    The first row of a slot counts in any case. Another one does if the draft that it reads is the token before it, the
    row before it counts, and its own token is not negative.
    """
    has_draft = drafts.offsets > 0
    wrong = (has_draft & ~((drafts.token_ids == ids.roll(1)) & (ids >= 0))).cumsum(0)
    first_rows = torch.arange(len(ids), device=ids.device) - drafts.offsets
    is_counted = wrong == wrong[first_rows]
    return CountedRows(is_counted, is_counted & ~(is_counted & has_draft).roll(-1))


def store_last(last_tokens: Tensor, slot_ids: Tensor, ids: Tensor, rows: CountedRows) -> None:
    """Store the last of ids[B] that counts for each of the slots slot_ids[B], except for padding.

    last_tokens: [slots + 1] int64, that of padding at the end. A negative ID is stored as 0, a valid embedding index.
    """
    padding_slot = len(last_tokens) - 1
    is_stored = rows.is_last & (slot_ids != padding_slot)
    stored = torch.where(is_stored, ids.clamp(min=0), last_tokens[padding_slot])
    last_tokens.index_copy_(0, torch.where(is_stored, slot_ids, padding_slot), stored)
