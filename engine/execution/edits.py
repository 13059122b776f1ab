"""What is done to logits between model and sampling: min_tokens, logit_bias and penalties, in vLLM's order.

Each kind of edit is a dense table with one row per slot, made for the first request with that edit or in advance,
filled when a request joins and kept up with one operation per step. So a step costs a few operations over the rows that
are edited, however long their texts and however many they are.
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
class Wanted:
    """The rows of a step whose logits are edited, their slots, and which of them ask for what."""

    rows: Ints
    slots: Ints
    too_short: NDArray[np.bool_]
    biased: NDArray[np.bool_]
    penalised: NDArray[np.bool_]


class LogitEdits:
    """The tables: counts float32, in_prompt bool, bias float32 and stops bool, each [slots, V], on `device`."""

    def __init__(self, slots: SlotState, vocab_size: int, device: torch.device) -> None:
        self._slots = slots
        self._size = (len(slots.lengths), vocab_size)
        self._device = device
        self._counts: Tensor | None = None  # how often each id was generated
        self._in_prompt: Tensor | None = None
        self._bias: Tensor | None = None
        self._stops: Tensor | None = None  # ids that cannot be sampled before min_tokens

    @staticmethod
    def table_bytes(slots: int, vocab_size: int) -> int:
        """Return the bytes of all tables together."""
        return slots * vocab_size * 2 * (torch.float32.itemsize + torch.bool.itemsize)

    def reserve(self) -> None:
        """Allocate all tables, so that no request can fail because the device has no memory left for them."""
        self._counts, self._in_prompt = self._table(self._counts), self._table(self._in_prompt, torch.bool)
        self._bias, self._stops = self._table(self._bias), self._table(self._stops, torch.bool)

    def join(self, joins: Iterable[Join]) -> None:
        """Fill the rows of those who joined and ask for edits; other rows are never read. Nothing here waits for a GPU:
        a number assigned to chosen columns would be copied there from ordinary memory, and `bincount` asks it how far
        to count."""
        for join in joins:
            sampling, slot = join.sampling, join.slot
            if sampling.penalises:
                self._counts, self._in_prompt = self._table(self._counts), self._table(self._in_prompt, torch.bool)
                generated = self._tensor(np.array(join.tokens[join.prompt_len :], np.int64))
                once = torch.ones_like(generated, dtype=torch.float32)
                self._counts[slot].fill_(0.0).index_add_(0, generated, once)
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

    def wanted(self, slots: Ints) -> Wanted | None:
        """What those in slots[R] ask to be done to their next logits; None: nobody asks for anything."""
        state = self._slots
        too_short = state.lengths[slots] - state.prompt_lens[slots] < state.min_tokens[slots]
        biased, penalised = state.biased[slots], state.penalised[slots]
        rows = np.flatnonzero(too_short | biased | penalised)
        return Wanted(rows, slots[rows], too_short[rows], biased[rows], penalised[rows]) if len(rows) else None

    def apply(self, logits: Tensor, wanted: Wanted | None) -> Tensor:
        """logits[R, V] any float -> the same, or a copy in float32 where rows ask to be edited."""
        if wanted is None:
            return logits
        logits = logits.to(torch.float32)
        where, index = wanted.slots, self._tensor(wanted.rows)
        edited, table_rows = logits[index], self._tensor(where)
        if self._stops is not None and wanted.too_short.any():
            banned = self._stops[table_rows] & self._column(wanted.too_short)
            edited.masked_fill_(banned, -torch.inf)
        if self._bias is not None and wanted.biased.any():
            # Rows without a bias may hold a predecessor's, whatever that is.
            edited += torch.where(self._column(wanted.biased), self._bias[table_rows], 0.0)
        if self._counts is not None and self._in_prompt is not None and wanted.penalised.any():
            edited = self._penalise(edited, where, wanted.penalised, self._counts, self._in_prompt)
        return logits.index_copy(0, index, edited)

    def append(self, wanted: Wanted | None, token_ids: Tensor) -> None:
        """token_ids[R] int64 were generated. -1, of a broken row, counts for the last token, and nobody reads on."""
        if wanted is not None and self._counts is not None and wanted.penalised.any():
            rows, slots = wanted.rows[wanted.penalised], wanted.slots[wanted.penalised]
            self._counts[self._tensor(slots), token_ids[self._tensor(rows)]] += 1.0

    def _penalise(
        self, logits: Tensor, slots: Ints, asked: NDArray[np.bool_], all_counts: Tensor, in_prompt: Tensor
    ) -> Tensor:
        state, index, mask = self._slots, self._tensor(slots), self._column(asked)
        counts = all_counts[index] * mask
        seen = (counts > 0) | (in_prompt[index] & mask)
        factor = self._column(state.repetition_penalty[slots])
        logits = torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)
        logits -= self._column(state.frequency_penalty[slots]) * counts
        logits -= self._column(state.presence_penalty[slots]) * (counts > 0)
        return logits

    def _table(self, table: Tensor | None, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(self._size, dtype=dtype, device=self._device) if table is None else table

    def _column(self, array: np.ndarray) -> Tensor:
        return self._tensor(array).unsqueeze(1)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return to_device((array,), self._device)[0]
