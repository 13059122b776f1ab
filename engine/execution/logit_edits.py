"""Logit edits between model and sampling: min_tokens, logit_bias and penalties, in vLLM's order.

Each kind of edit is a dense table with one row per slot. It is allocated for the first request with that edit or in
advance, filled when a request joins, and updated with one operation per step. A step costs a few operations over the
edited rows, independent of the number and length of their texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.execution.slots import Ints, SlotState
from engine.execution.transfer import to_device
from engine.scheduling.batch import Join


@dataclass(frozen=True, slots=True)
class LogitEditMask:
    """Rows of a step with edited logits, their slots, and a mask for each kind of edit."""

    rows: Ints
    slots: Ints
    too_short: NDArray[np.bool_]
    biased: NDArray[np.bool_]
    penalised: NDArray[np.bool_]


class LogitEdits:
    """Edit tables: counts float32, in_prompt bool, bias float32 and stops bool, each [slots, V], on `device`."""

    def __init__(self, slots: SlotState, vocab_size: int, device: torch.device) -> None:
        self._slots = slots
        self._size = (len(slots.lengths), vocab_size)
        self._device = device
        self._counts: Tensor | None = None  # how often each ID was generated
        self._in_prompt: Tensor | None = None
        self._bias: Tensor | None = None
        self._stops: Tensor | None = None  # IDs that cannot be sampled before min_tokens

    @staticmethod
    def table_bytes(slots: int, vocab_size: int) -> int:
        """Return the bytes of all tables together."""
        return slots * vocab_size * 2 * (torch.float32.itemsize + torch.bool.itemsize)

    def reserve(self) -> None:
        """Allocate all tables, so that no request can fail because the device has no memory left for them."""
        self._counts, self._in_prompt = self._table(self._counts), self._table(self._in_prompt, torch.bool)
        self._bias, self._stops = self._table(self._bias), self._table(self._stops, torch.bool)

    def join(self, joins: Iterable[Join]) -> None:
        """Fill the rows of joining requests with edits; other rows are never read.

        Does not wait for a GPU. Assigning a number to selected columns would copy it from pageable memory, and
        `bincount` would read its range from the device.
        """
        for join in joins:
            sampling, slot = join.sampling, join.slot
            if sampling.has_penalties:
                self._counts, self._in_prompt = self._table(self._counts), self._table(self._in_prompt, torch.bool)
                generated = self._tensor(np.array(join.tokens[join.prompt_len :], np.int64))
                ones = torch.ones_like(generated, dtype=torch.float32)
                self._counts[slot].fill_(0.0).index_add_(0, generated, ones)
                prompt = self._tensor(np.array(join.tokens[: join.prompt_len], np.int64))
                self._in_prompt[slot].fill_(False).index_fill_(0, prompt, True)
            if sampling.logit_bias:
                self._bias = self._table(self._bias)
                ids, values = zip(*sampling.logit_bias.items(), strict=True)
                biases = self._tensor(np.array(values, np.float32))
                self._bias[slot].fill_(0.0).index_copy_(0, self._tensor(np.array(ids, np.int64)), biases)
            if sampling.min_tokens:
                self._stops = self._table(self._stops, torch.bool)
                stops = self._tensor(np.array(sampling.stop_token_ids, np.int64))
                self._stops[slot].fill_(False).index_fill_(0, stops, True)

    def edits_for(self, slots: Ints) -> LogitEditMask | None:
        """Return the edits for the next logits of slots[R]; None if there are none."""
        state = self._slots
        records = state.records[slots]
        too_short = state.lengths[slots] - records["prompt_len"] < records["min_tokens"]
        biased, penalised = state.biased[slots], state.penalised[slots]
        rows = np.flatnonzero(too_short | biased | penalised)
        return LogitEditMask(rows, slots[rows], too_short[rows], biased[rows], penalised[rows]) if len(rows) else None

    def apply(self, logits: Tensor, edits: LogitEditMask | None) -> Tensor:
        """Return logits[R, V] of any float dtype unchanged, or an edited copy in float32 if a row has edits."""
        if edits is None:
            return logits
        logits = logits.to(torch.float32)
        slots, index = edits.slots, self._tensor(edits.rows)
        edited, table_rows = logits[index], self._tensor(slots)
        if self._stops is not None and edits.too_short.any():
            masked = self._stops[table_rows] & self._column(edits.too_short)
            edited.masked_fill_(masked, -torch.inf)
        if self._bias is not None and edits.biased.any():
            # The table row of a slot without a bias may hold that of an earlier request.
            edited += torch.where(self._column(edits.biased), self._bias[table_rows], 0.0)
        if self._counts is not None and self._in_prompt is not None and edits.penalised.any():
            edited = self._penalise(edited, slots, edits.penalised, self._counts, self._in_prompt)
        return logits.index_copy(0, index, edited)

    def append(self, edits: LogitEditMask | None, token_ids: Tensor) -> None:
        """Count the sampled token_ids[R] int64.

        An ID of -1 (a row with NaN) counts for the last token of the vocabulary; its request ends.
        """
        if edits is not None and self._counts is not None and edits.penalised.any():
            rows, slots = edits.rows[edits.penalised], edits.slots[edits.penalised]
            self._counts[self._tensor(slots), token_ids[self._tensor(rows)]] += 1.0

    def _penalise(
        self, logits: Tensor, slots: Ints, penalised: NDArray[np.bool_], all_counts: Tensor, in_prompt: Tensor
    ) -> Tensor:
        records, index, mask = self._slots.records[slots], self._tensor(slots), self._column(penalised)
        counts = all_counts[index] * mask
        seen = (counts > 0) | (in_prompt[index] & mask)
        factor = self._column(records["repetition_penalty"])
        logits = torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)
        logits -= self._column(records["frequency_penalty"]) * counts
        logits -= self._column(records["presence_penalty"]) * (counts > 0)
        return logits

    def _table(self, table: Tensor | None, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(self._size, dtype=dtype, device=self._device) if table is None else table

    def _column(self, array: np.ndarray) -> Tensor:
        return self._tensor(array).unsqueeze(1)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return to_device((array,), self._device)[0]
