"""Start and end of a decode step: gathering model inputs from the slots, and storing sampled tokens in them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.slots import PromptRows, SamplingTensors, SlotTensors, StepRows


def gather_slots(
    slots: SlotTensors, slot_ids: Tensor, prompts: PromptRows | None, width: int, page_size: int
) -> StepRows:
    """Return the model inputs of the slots slot_ids[B] int64; see `kernels.interface.Kernels.gather_slots`."""
    lengths = slots.lengths.index_select(0, slot_ids)
    token_ids, positions = slots.last_tokens.index_select(0, slot_ids), lengths - 1
    if prompts is not None:
        are_prompts = prompts.positions >= 0
        token_ids = torch.where(are_prompts, prompts.token_ids, token_ids)
        positions = torch.where(are_prompts, prompts.positions, positions)
        lengths = lengths.masked_fill(are_prompts, 0)
    table = slots.page_table[:, :width].index_select(0, slot_ids)
    pages = table.gather(1, (positions // page_size).unsqueeze(1)).squeeze(1).to(torch.int64)
    slot_mapping = pages * page_size + positions % page_size
    return StepRows(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slot_mapping.masked_fill(slot_ids == slots.padding_slot, -1),
        page_table=table,
        context_lens=lengths.to(torch.int32),
    )


def sample_slots(
    sample: Callable[[Tensor, SamplingTensors], Tensor],
    logits: Tensor,
    slots: SlotTensors,
    slot_ids: Tensor,
    ids: Tensor,
) -> None:
    """Sample with a back end's `sample` and advance the slots; see `kernels.interface.Kernels.sample_slots`."""
    ids.copy_(sample(logits, slots.sampling.select(slot_ids)))
    is_sequence = slot_ids != slots.padding_slot
    slots.last_tokens.index_copy_(
        0, slot_ids, torch.where(is_sequence, ids.clamp(min=0), slots.last_tokens[slots.padding_slot])
    )
    slots.lengths.index_add_(0, slot_ids, is_sequence.to(torch.int64))
