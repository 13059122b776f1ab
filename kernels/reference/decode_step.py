"""Start and end of a decode step: gathering model inputs from the slots, and storing sampled tokens in them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.reference.accept import append_tokens, count_rows, store_last
from kernels.slots import DraftRows, PromptRows, SamplingTensors, SlotTensors, StepRows


def gather_slots(
    slots: SlotTensors, slot_ids: Tensor, given: PromptRows | DraftRows | None, width: int, page_size: int
) -> StepRows:
    """Return the model inputs of the slots slot_ids[B] int64; see `kernels.interface.Kernels.gather_slots`."""
    lengths = slots.lengths.index_select(0, slot_ids)
    token_ids, positions = slots.last_tokens.index_select(0, slot_ids), lengths - 1
    is_unwritten = slot_ids == slots.padding_slot
    if isinstance(given, PromptRows):
        are_prompts = given.positions >= 0
        token_ids = torch.where(are_prompts, given.token_ids, token_ids)
        positions = torch.where(are_prompts, given.positions, positions)
        lengths = lengths.masked_fill(are_prompts, 0)
    elif given is not None:
        reads_draft = given.offsets > 0
        is_absent = reads_draft & (given.token_ids < 0)
        token_ids = torch.where(reads_draft, given.token_ids.clamp(min=0), token_ids)
        offsets = given.offsets.masked_fill(is_absent, 0)
        positions, lengths = positions + offsets, lengths + offsets
        is_unwritten = is_unwritten | is_absent
    table = slots.page_table[:, :width].index_select(0, slot_ids)
    pages = table.gather(1, (positions // page_size).unsqueeze(1)).squeeze(1).to(torch.int64)
    slot_mapping = pages * page_size + positions % page_size
    return StepRows(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slot_mapping.masked_fill(is_unwritten, -1),
        page_table=table,
        context_lens=lengths.to(torch.int32),
    )


def sample_slots(
    sample: Callable[[Tensor, SamplingTensors], Tensor],
    logits: Tensor,
    slots: SlotTensors,
    slot_ids: Tensor,
    ids: Tensor,
    drafts: DraftRows | None,
) -> None:
    """Sample with a back end's `sample` and advance the slots; see `kernels.interface.Kernels.sample_slots`."""
    is_sequence = slot_ids != slots.padding_slot
    if drafts is not None:
        ids.copy_(sample(logits, slots.sampling_of(slot_ids, drafts)))
        counted = count_rows(ids, drafts)
        store_last(slots.last_tokens, slot_ids, ids, counted)
        append_tokens(slots, slot_ids, ids, counted)
        slots.lengths.index_add_(0, slot_ids, (is_sequence & counted.is_counted).to(torch.int64))
        return
    ids.copy_(sample(logits, slots.sampling.select(slot_ids)))
    append_tokens(slots, slot_ids, ids)
    slots.last_tokens.index_copy_(
        0, slot_ids, torch.where(is_sequence, ids.clamp(min=0), slots.last_tokens[slots.padding_slot])
    )
    slots.lengths.index_add_(0, slot_ids, is_sequence.to(torch.int64))
