"""DeviceSlots: what a recorded step reads of each slot, where it is computed.

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
from kernels.interface import Kernels
from kernels.slots import PromptRows, SlotTensors


class DeviceSlots:
    """The slots' rows; nobody's results are never read and never written to a page."""

    def __init__(self, slots: SlotState, last_tokens: Tensor) -> None:
        """last_tokens: [slots + 1] int64, the runner's, which writes them."""
        self._slots = slots
        self._device = last_tokens.device
        self.tensors = SlotTensors(
            last_tokens=last_tokens,
            lengths=torch.ones_like(last_tokens),
            page_table=self._rows(slots.page_table),
            temperature=self._rows(slots.temperature),
            top_k=self._rows(slots.top_k),
            top_p=self._rows(slots.top_p),
            min_p=self._rows(slots.min_p),
            seed=self._rows(slots.seed),
            choice=self._rows(slots.choice),
        )
        self.nobody = self.tensors.nobody

    def _rows(self, array: np.ndarray) -> Tensor:
        """Zeros for all slots and nobody."""
        dtype = torch.from_numpy(array[:0]).dtype
        return torch.zeros((len(array) + 1, *array.shape[1:]), dtype=dtype, device=self._device)

    def apply(self, batch: Batch) -> None:
        """Take in who grew and who joined; `SlotState` has done so before."""
        if batch.grown:
            slots, indices, pages = (np.array(column, np.int64) for column in zip(*batch.grown, strict=True))
            where, index, page = to_device((slots, indices, pages.astype(np.int32)), self._device)
            self.tensors.page_table.index_put_((where, index), page)
        if batch.joins:
            device, host, rows = self.tensors, self._slots, np.array([join.slot for join in batch.joins], np.int64)
            held = (
                (device.lengths, host.lengths),
                (device.page_table, host.page_table),
                (device.temperature, host.temperature),
                (device.top_p, host.top_p),
                (device.min_p, host.min_p),
                (device.top_k, host.top_k),
                (device.seed, host.seed),
                (device.choice, host.choice),
            )
            where, *values = to_device((rows, *(array[rows] for _, array in held)), self._device)
            for (tensor, _), value in zip(held, values, strict=True):
                tensor.index_copy_(0, where, value)

    def advance(self, slots: Tensor) -> None:
        """A token was sampled for each of slots[R] int64."""
        self.tensors.lengths.index_add_(0, slots, torch.ones_like(slots))

    def inputs(
        self,
        kernels: Kernels,
        slots: Tensor,
        width: int,
        page_size: int,
        prompts: PromptRows | None = None,
        tiles: Tensor | None = None,
    ) -> ModelInputs:
        """A row for each of slots[T] int64, its last token or, with `prompts` and their tiles, that of a prompt; with
        page tables of `width` pages. Nothing here waits for the device."""
        rows = kernels.gather_slots(self.tensors, slots, prompts, width, page_size)
        decodes = min(len(slots), self.nobody)  # beyond one for each slot rows are prompts'
        return ModelInputs(
            token_ids=rows.token_ids,
            positions=rows.positions,
            slots=rows.places,
            num_decodes=decodes,
            decode_page_table=rows.page_table[:decodes],
            decode_context_lens=rows.context_lens[:decodes],
            prefill_page_table=rows.page_table if prompts else rows.page_table[:0],
            prefill_query_starts=(0,),
            prefill_context_lens=(),
            logit_rows=None,
            tiles=tiles,
        )
