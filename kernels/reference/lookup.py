"""Drafts looked up on the device, in the text of each slot, so that a step need not wait for its host."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.slots import NO_DRAFT_TOKEN, SlotTensors

MIN_MATCH = 2  # tokens; a single one seldom has the same continuation twice
MAX_MATCH = 16  # tokens that are compared
NO_TOKEN = -1  # before the first token; equals none


def draft_slots(slots: SlotTensors, slot_ids: Tensor, limits: Tensor, drafts: Tensor, matches: Tensor) -> None:
    """Write drafts[S, D] of the slots slot_ids[S]; see `kernels.interface.Kernels.draft_slots`."""
    assert slots.tokens is not None
    lengths = slots.lengths.index_select(0, slot_ids)
    is_searched = (limits > 0) & (slot_ids != slots.padding_slot) & (lengths <= slots.max_text)
    last = torch.where(is_searched, lengths - 1, 0).unsqueeze(1)
    text = slots.tokens.index_select(0, slot_ids)
    places = torch.arange(slots.max_text, device=text.device)
    is_equal, match = places < last, torch.zeros_like(text, dtype=torch.int64)
    for back in range(MAX_MATCH):
        compared = functional.pad(text, (back, 0), value=NO_TOKEN)[:, : slots.max_text]
        is_equal = is_equal & (compared == text.gather(1, (last - back).clamp(min=0)))
        match += is_equal
    key = torch.where(match >= MIN_MATCH, match << 32 | places, 0).amax(dim=1, keepdim=True)
    longest, place = key >> 32, key & 0xFFFFFFFF
    ahead = torch.arange(drafts.shape[1], device=text.device)
    source = place + 1 + ahead % (last - place).clamp(min=1)
    is_draft = (longest > 0) & (ahead < limits.unsqueeze(1))
    found = text.gather(1, source.clamp(max=slots.max_text - 1)).to(torch.int64)
    drafts.copy_(torch.where(is_draft, found, NO_DRAFT_TOKEN))
    matches.copy_(longest.squeeze(1))
