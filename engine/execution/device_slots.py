"""DeviceSlots: what a decode step reads of each slot, where it is computed.

Kept up by changes alone: who joined and which pages were added come with a batch, and every sampled token advances
its slot there. So a step that only decodes needs nothing from the host but the list of slots, when it changed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.execution.inputs import ModelInputs
from engine.execution.slots import SlotState
from engine.execution.transfer import to_device
from engine.scheduling.batch import Batch


class DeviceSlots:
    """One row for each slot, and behind them one for nobody, whose results are never read and never written to a page.

    last_tokens, lengths, seed, choice: [slots + 1] int64. page_table: [slots + 1, P] int32. temperature, top_p, min_p:
    [slots + 1] float32. top_k: [slots + 1] int32.
    """

    def __init__(self, slots: SlotState, last_tokens: Tensor) -> None:
        """last_tokens: [slots + 1] int64, the runner's, which writes them."""
        self._slots = slots
        self._device = last_tokens.device
        self.nobody = len(slots.lengths)
        self.last_tokens = last_tokens
        self.lengths = torch.ones_like(last_tokens)
        self.page_table = self._rows(slots.page_table)
        self.temperature, self.top_p, self.min_p = (
            self._rows(x) for x in (slots.temperature, slots.top_p, slots.min_p)
        )
        self.top_k, self.seed, self.choice = (self._rows(x) for x in (slots.top_k, slots.seed, slots.choice))

    def _rows(self, array: np.ndarray) -> Tensor:
        """Zeros for all slots and nobody."""
        dtype = torch.from_numpy(array[:0]).dtype
        return torch.zeros((self.nobody + 1, *array.shape[1:]), dtype=dtype, device=self._device)

    def apply(self, batch: Batch) -> None:
        """Take in who grew and who joined; `SlotState` has done so before."""
        if batch.grown:
            slots, indices, pages = (np.array(column, np.int64) for column in zip(*batch.grown, strict=True))
            where, index, page = to_device((slots, indices, pages.astype(np.int32)), self._device)
            self.page_table.index_put_((where, index), page)
        if batch.joins:
            host, rows = self._slots, np.array([join.slot for join in batch.joins], np.int64)
            held = (
                (self.lengths, host.lengths),
                (self.page_table, host.page_table),
                (self.temperature, host.temperature),
                (self.top_p, host.top_p),
                (self.min_p, host.min_p),
                (self.top_k, host.top_k),
                (self.seed, host.seed),
                (self.choice, host.choice),
            )
            where, *values = to_device((rows, *(array[rows] for _, array in held)), self._device)
            for (tensor, _), value in zip(held, values, strict=True):
                tensor.index_copy_(0, where, value)

    def advance(self, slots: Tensor) -> None:
        """A token was sampled for each of slots[R] int64."""
        self.lengths.index_add_(0, slots, torch.ones_like(slots))

    def decode_inputs(self, slots: Tensor, width: int, page_size: int) -> ModelInputs:
        """slots[B] int64, one decode row each, with page tables of `width` pages. Nothing here waits for the device."""
        lengths = self.lengths.index_select(0, slots)
        table = self.page_table[:, :width].index_select(0, slots)
        positions = lengths - 1
        pages = table.gather(1, (positions // page_size).unsqueeze(1)).squeeze(1).to(torch.int64)
        nowhere = torch.full_like(slots, -1)
        return ModelInputs(
            token_ids=self.last_tokens.index_select(0, slots),
            positions=positions,
            slots=torch.where(slots == self.nobody, nowhere, pages * page_size + positions % page_size),
            num_decodes=len(slots),
            decode_page_table=table,
            decode_context_lens=lengths.to(torch.int32),
            prefill_page_table=table[:0],
            prefill_query_starts=(0,),
            prefill_context_lens=(),
            logit_rows=slots,  # every row's are wanted: nobody reads this
        )
