"""State of each slot on the device, as read by recorded steps.

Updated incrementally: joins and new pages come with a batch, and every sampled token advances its slot on the device. A
step that only decodes therefore needs nothing from the host except the list of slots, if it changed.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from engine.execution.inputs import ModelInputs
from engine.execution.slots import SlotState
from engine.execution.transfer import to_device
from engine.scheduling.batch import Batch
from kernels.interface import Kernels
from kernels.reference.accept import CountedRows, append_tokens, store_tokens
from kernels.slots import DraftRows, PromptRows, SlotTensors, as_bytes

ROW_ALIGN_TOKENS = 16  # of a row of tokens, so that kernels load several at once


def _token_table(slots: int, length: int) -> tuple[int, int]:
    """Return the shape of a table of tokens, with a padding row."""
    return slots + 1, -(-length // ROW_ALIGN_TOKENS) * ROW_ALIGN_TOKENS


class DeviceSlots:
    """Slot tensors with one extra padding row. Its results are never read and never written to a page."""

    def __init__(self, slots: SlotState, last_tokens: Tensor, *, has_tokens: bool = False) -> None:
        """Use `last_tokens` ([slots + 1] int64), which the runner writes.

        has_tokens: keep the known tokens of each slot, in which `Kernels.draft_slots` looks up drafts.
        """
        self._slots = slots
        self._device = last_tokens.device
        self.tensors = SlotTensors(
            last_tokens=last_tokens,
            lengths=torch.ones_like(last_tokens),
            page_table=self._rows(slots.page_table),
            records=self._rows(as_bytes(slots.records)),
            tokens=self._token_rows() if has_tokens else None,
        )
        self.padding_slot = self.tensors.padding_slot

    @staticmethod
    def token_bytes(slots: int, max_len: int) -> int:
        """Return the bytes of the tokens that are kept for drafts."""
        return math.prod(_token_table(slots, max_len + 1)) * torch.int32.itemsize

    def _rows(self, array: np.ndarray) -> Tensor:
        """Return zeros for all slots and the padding row."""
        dtype = torch.from_numpy(array[:0]).dtype
        return torch.zeros((len(array) + 1, *array.shape[1:]), dtype=dtype, device=self._device)

    def _token_rows(self) -> Tensor:
        """Return zeros for the tokens of all slots and the padding row."""
        return torch.zeros(_token_table(*self._slots.tokens.shape), dtype=torch.int32, device=self._device)

    def apply(self, batch: Batch) -> None:
        """Apply the batch's new pages and joins, after `SlotState.apply`."""
        if batch.new_pages:
            slots, indices, pages = (np.array(column, np.int64) for column in zip(*batch.new_pages, strict=True))
            slot_index, index, page = to_device((slots, indices, pages.astype(np.int32)), self._device)
            self.tensors.page_table.index_put_((slot_index, index), page)
        if batch.joins:
            device, host, rows = self.tensors, self._slots, np.array([join.slot for join in batch.joins], np.int64)
            mirrored = (
                (device.lengths, host.lengths),
                (device.page_table, host.page_table),
                (device.records, as_bytes(host.records)),
            )
            sent = [array[rows] for _, array in mirrored]
            if device.tokens is not None:
                sent += [host.tokens[join.slot, : len(join.tokens)].astype(np.int32) for join in batch.joins]
            slot_index, *values = to_device((rows, *sent), self._device)
            for (tensor, _), value in zip(mirrored, values, strict=False):
                tensor.index_copy_(0, slot_index, value)
            if device.tokens is not None:
                for join, known in zip(batch.joins, values[len(mirrored) :], strict=True):
                    device.tokens[join.slot, : len(known)].copy_(known)

    def advance(self, slots: Tensor, token_ids: Tensor, counted: CountedRows | None = None) -> None:
        """Append sampled token_ids[R] int64 to each of slots[R] int64, or those of `counted` rows."""
        append_tokens(self.tensors, slots, token_ids, counted)
        counts = torch.ones_like(slots) if counted is None else counted.is_counted.to(torch.int64)
        self.tensors.lengths.index_add_(0, slots, counts)

    def replace_last(self, slots: Tensor, token_ids: Tensor) -> None:
        """Replace the last token of slots[R] int64 by token_ids[R] int64, sampled again, where tokens are kept."""
        if self.tensors.tokens is None:
            return
        positions = self.tensors.lengths.index_select(0, slots) - 1
        store_tokens(self.tensors, slots, positions, token_ids, torch.ones_like(slots, dtype=torch.bool))

    def inputs(
        self,
        kernels: Kernels,
        slots: Tensor,
        width: int,
        page_size: int,
        given: PromptRows | DraftRows | None = None,
        tiles: Tensor | None = None,
    ) -> ModelInputs:
        """Return model inputs with a row for each of slots[T] int64, without waiting for the device.

        A row reads its slot's last token or a given one: a draft, or a prompt token in one of `tiles`. Page tables are
        `width` pages wide.
        """
        rows = kernels.gather_slots(self.tensors, slots, given, width, page_size)
        has_prompts = isinstance(given, PromptRows)
        decodes = min(len(slots), self.padding_slot) if has_prompts else len(slots)  # further rows are prompt tokens
        return ModelInputs(
            token_ids=rows.token_ids,
            positions=rows.positions,
            slot_mapping=rows.slot_mapping,
            num_decodes=decodes,
            decode_page_table=rows.page_table[:decodes],
            decode_context_lens=rows.context_lens[:decodes],
            prefill_page_table=rows.page_table if has_prompts else rows.page_table[:0],
            prefill_query_starts=(0,),
            prefill_context_lens=(),
            logit_rows=None,
            tiles=tiles,
        )
