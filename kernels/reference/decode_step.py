"""What surrounds the model in a decode step: reading the slots, and taking in what was sampled for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.slots import DecodeRows, SlotTensors


def gather_slots(slots: SlotTensors, which: Tensor, width: int, page_size: int) -> DecodeRows:
    """which[B] int64 -> their rows; see `kernels.interface.Kernels.gather_slots`."""
    lengths = slots.lengths.index_select(0, which)
    table = slots.page_table[:, :width].index_select(0, which)
    positions = lengths - 1
    pages = table.gather(1, (positions // page_size).unsqueeze(1)).squeeze(1).to(torch.int64)
    places = pages * page_size + positions % page_size
    return DecodeRows(
        token_ids=slots.last_tokens.index_select(0, which),
        positions=positions,
        places=places.masked_fill(which == slots.nobody, -1),
        page_table=table,
        context_lens=lengths.to(torch.int32),
    )


def sample_slots(sample: Callable[..., Tensor], logits: Tensor, slots: SlotTensors, which: Tensor, ids: Tensor) -> None:
    """With the `sample` of a back end; see `kernels.interface.Kernels.sample_slots`."""
    parameters = (slots.temperature, slots.top_k, slots.top_p, slots.min_p, slots.seed, slots.lengths, slots.choice)
    ids.copy_(sample(logits, *(parameter.index_select(0, which) for parameter in parameters)))
    somebody = which != slots.nobody
    slots.last_tokens.index_copy_(0, which, torch.where(somebody, ids.clamp(min=0), slots.last_tokens[slots.nobody]))
    slots.lengths.index_add_(0, which, somebody.to(torch.int64))
