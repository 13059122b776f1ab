"""Drafts looked up in the text of each slot: a search in parallel over the text, then one program for each slot.

The programs of a slot store the best of their places, and the second kernel takes the largest: the result does not
depend on their order or number. A program without a text to search ends after two dependent loads.
"""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference import lookup as reference
from kernels.slots import NO_DRAFT_TOKEN, SlotTensors
from kernels.triton.pdl import pdl_options, wait_for_previous

BLOCK = 1024  # places compared at a time
NUM_WARPS = 4
MAX_PROGRAMS = 1024  # of a search; with more than a GPU runs at once, programs without a text take time
MIN_MATCH = tl.constexpr(reference.MIN_MATCH)
MAX_MATCH = tl.constexpr(reference.MAX_MATCH)
NO_TOKEN = tl.constexpr(reference.NO_TOKEN)
NO_DRAFT = tl.constexpr(NO_DRAFT_TOKEN)


@triton.jit
def _last_place(slot, limit, lengths, padding_slot, MAX_TEXT: tl.constexpr):
    """Return the place of a slot's last token as int32, or -1 if nothing is searched."""
    is_searched = (limit > 0) & (slot != padding_slot)
    last = tl.load(lengths + slot, mask=is_searched, other=0) - 1
    return tl.where(last < MAX_TEXT, last, -1).to(tl.int32)


@triton.jit
def _compare(text, places, last, back, is_equal):
    """Return which of the places that are equal so far have the token before them in common with the last place.

    back: the number of tokens between that token and the place.
    """
    tokens = tl.load(text + places - back, mask=is_equal & (places >= back), other=NO_TOKEN)
    return is_equal & (tokens == tl.load(text + last - back, mask=last >= back, other=0))


@triton.jit
def _search_kernel(
    slot_ids,  # [S] int64
    limits,  # [S] int64
    lengths,  # [slots + 1] int64
    text,  # [slots + 1, MAX_TEXT] int32
    keys,  # [S, parts] int64
    padding_slot,
    MAX_TEXT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the key of the best place in some blocks of a slot's text, match << 32 | place; 0 if there is none."""
    row = tl.program_id(0).to(tl.int64)
    part, parts = tl.program_id(1), tl.num_programs(1)
    slot = tl.load(slot_ids + row)
    last = _last_place(slot, tl.load(limits + row), lengths, padding_slot, MAX_TEXT)
    if part * BLOCK >= last:
        return
    text += slot * MAX_TEXT
    best = tl.zeros([BLOCK], tl.int64)
    for start in range(part * BLOCK, last, parts * BLOCK):
        places = start + tl.arange(0, BLOCK)
        is_equal = places < last
        for nearest in tl.static_range(MIN_MATCH):
            is_equal = _compare(text, places, last, nearest, is_equal)
        if tl.max(is_equal.to(tl.int32), axis=0) > 0:
            match = tl.where(is_equal, MIN_MATCH, 0)
            for back in range(MIN_MATCH, MAX_MATCH):
                is_equal = _compare(text, places, last, back, is_equal)
                match += is_equal.to(tl.int32)
            key = (match.to(tl.int64) << 32) | places
            best = tl.where(match > 0, tl.maximum(best, key), best)
    tl.store(keys + row * parts + part, tl.max(best, axis=0))


@triton.jit(do_not_specialize=["parts", "max_drafts"])
def _draft_kernel(
    slot_ids,  # [S] int64
    limits,  # [S] int64
    lengths,  # [slots + 1] int64
    text,  # [slots + 1, MAX_TEXT] int32
    keys,  # [S, parts] int64
    drafts,  # [S, max_drafts] int64
    matches,  # [S] int32
    padding_slot,
    parts,
    max_drafts,
    MAX_TEXT: tl.constexpr,
    MAX_PARTS: tl.constexpr,  # a power of two
    MAX_DRAFTS: tl.constexpr,  # a power of two
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Store the tokens that followed the best place of one slot, and the length of its match."""
    wait_for_previous(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    slot, limit = tl.load(slot_ids + row), tl.load(limits + row)
    last = _last_place(slot, limit, lengths, padding_slot, MAX_TEXT)
    part = tl.arange(0, MAX_PARTS)
    was_searched = (part < parts) & (part * BLOCK < last)
    key = tl.max(tl.load(keys + row * parts + part, mask=was_searched, other=0), axis=0)
    match, place = (key >> 32).to(tl.int32), key.to(tl.int32)  # the lower half
    ahead = tl.arange(0, MAX_DRAFTS)
    source = place + 1 + ahead % tl.maximum(last - place, 1)  # beyond the text its period goes on
    is_draft = (match > 0) & (ahead < limit)
    tokens = tl.load(text + slot * MAX_TEXT + source, mask=is_draft, other=NO_DRAFT)
    tl.store(drafts + row * max_drafts + ahead, tokens.to(tl.int64), mask=ahead < max_drafts)
    tl.store(matches + row, match)


def draft_slots(slots: SlotTensors, slot_ids: Tensor, limits: Tensor, drafts: Tensor, matches: Tensor) -> None:
    """Write drafts[S, D] of the slots slot_ids[S]; see `kernels.interface.Kernels.draft_slots`."""
    S, D = drafts.shape
    blocks = triton.cdiv(slots.max_text, BLOCK)
    parts = min(blocks, max(1, MAX_PROGRAMS // S))
    keys = torch.empty((S, parts), dtype=torch.int64, device=drafts.device)
    read = (slot_ids, limits, slots.lengths, slots.tokens, keys)
    _search_kernel[(S, parts)](*read, slots.padding_slot, MAX_TEXT=slots.max_text, BLOCK=BLOCK, num_warps=NUM_WARPS)
    _draft_kernel[(S,)](
        *read,
        drafts,
        matches,
        slots.padding_slot,
        parts,
        D,
        MAX_TEXT=slots.max_text,
        MAX_PARTS=triton.next_power_of_2(min(blocks, MAX_PROGRAMS)),  # for any number of slots
        MAX_DRAFTS=triton.next_power_of_2(D),
        BLOCK=BLOCK,
        num_warps=1,
        **pdl_options(drafts.device),
    )
