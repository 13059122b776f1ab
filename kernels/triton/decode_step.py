"""Gather the model inputs of a recorded step from its slots, in one kernel."""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.slots import DraftRows, PromptRows, SlotTensors, StepRows

BLOCK = 256  # pages copied at a time
NUM_WARPS = 1


@triton.jit(do_not_specialize=["width"])
def _gather_slots_kernel(
    slot_ids,  # [B] int64
    last_tokens,  # [slots + 1] int64
    lengths,  # [slots + 1] int64
    page_table,  # [slots + 1, P] int32
    given_positions,  # [B] int64, positions with HAS_PROMPTS, offsets with HAS_DRAFTS
    given_ids,  # [B] int64
    token_ids,  # [B] int64
    positions,  # [B] int64
    slot_mapping,  # [B] int64
    table,  # [B, width] int32
    context_lens,  # [B] int32
    slots_stride,
    width,
    padding_slot,
    HAS_PROMPTS: tl.constexpr,
    HAS_DRAFTS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gather the inputs of one row."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ids + row)
    length = tl.load(lengths + slot)
    position = length - 1
    token_id = tl.load(last_tokens + slot)
    is_written = slot != padding_slot
    if HAS_PROMPTS:
        prompt_position = tl.load(given_positions + row)
        if prompt_position >= 0:
            position = prompt_position
            token_id = tl.load(given_ids + row)
            length = tl.zeros_like(length)
    if HAS_DRAFTS:
        offset = tl.load(given_positions + row)
        if offset > 0:
            draft = tl.load(given_ids + row)
            token_id = tl.maximum(draft, 0)
            is_written = is_written & (draft >= 0)
            offset = tl.where(draft >= 0, offset, 0)
        position += offset
        length += offset
    page_table += slot * slots_stride
    page = tl.load(page_table + position // PAGE_SIZE).to(tl.int64)
    tl.store(token_ids + row, token_id)
    tl.store(positions + row, position)
    tl.store(slot_mapping + row, tl.where(is_written, page * PAGE_SIZE + position % PAGE_SIZE, -1))
    tl.store(context_lens + row, length.to(tl.int32))
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < width
        tl.store(table + row * width + columns, tl.load(page_table + columns, mask=inside), mask=inside)


def gather_slots(
    slots: SlotTensors, slot_ids: Tensor, given: PromptRows | DraftRows | None, width: int, page_size: int
) -> StepRows:
    """Return the model inputs of the slots slot_ids[B] int64; see `kernels.interface.Kernels.gather_slots`."""
    B = len(slot_ids)
    has_prompts, places = isinstance(given, PromptRows), None
    if given is not None:
        places = given.positions if isinstance(given, PromptRows) else given.offsets
    token_ids, positions, slot_mapping = (torch.empty_like(slot_ids) for _ in range(3))
    table = torch.empty((B, width), dtype=torch.int32, device=slot_ids.device)
    context_lens = torch.empty(B, dtype=torch.int32, device=slot_ids.device)
    _gather_slots_kernel[(B,)](
        slot_ids,
        slots.last_tokens,
        slots.lengths,
        slots.page_table,
        places,
        given.token_ids if given else None,
        token_ids,
        positions,
        slot_mapping,
        table,
        context_lens,
        slots.page_table.stride(0),
        width,
        slots.padding_slot,
        HAS_PROMPTS=has_prompts,
        HAS_DRAFTS=given is not None and not has_prompts,
        PAGE_SIZE=page_size,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    return StepRows(token_ids, positions, slot_mapping, table, context_lens)
