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

from engine.execution.drafted_rows import SampledRows
from engine.execution.slots import Ints, SlotState
from engine.execution.transfer import to_device
from engine.scheduling.batch import Join
from kernels.interface import Kernels
from kernels.reference.accept import CountedRows
from kernels.slots import SamplingTensors, SeenTokens


@dataclass(frozen=True, slots=True)
class LogitEditMask:
    """Rows of a step with edited logits, their slots, and a mask for each kind of edit.

    drafts: those before penalised rows, as pairs of an index among these rows and a token. None: no row has drafts.
    """

    rows: Ints
    slots: Ints
    too_short: NDArray[np.bool_]
    biased: NDArray[np.bool_]
    penalised: NDArray[np.bool_]
    drafts: tuple[Ints, Ints] | None


class LogitEdits:
    """Edit tables: those of `SeenTokens`, bias float32 and stops bool, each [slots, V], on `device`."""

    def __init__(self, slots: SlotState, kernels: Kernels, vocab_size: int, device: torch.device) -> None:
        self._slots = slots
        self._kernels = kernels
        self._size = (len(slots.lengths), vocab_size)
        self._device = device
        self._seen: SeenTokens | None = None
        self._bias: Tensor | None = None
        self._stops: Tensor | None = None  # IDs that cannot be sampled before min_tokens

    @staticmethod
    def table_bytes(slots: int, vocab_size: int) -> int:
        """Return the bytes of all tables together."""
        return slots * vocab_size * 2 * (torch.float32.itemsize + torch.bool.itemsize)

    def reserve(self) -> None:
        """Allocate all tables, so that no request can fail because the device has no memory left for them."""
        self._seen_table()
        self._bias, self._stops = self._table(self._bias), self._table(self._stops, torch.bool)

    def join(self, joins: Iterable[Join]) -> None:
        """Fill the rows of joining requests with edits; other rows are never read.

        Does not wait for a GPU. Assigning a number to selected columns would copy it from pageable memory, and
        `bincount` would read its range from the device.
        """
        for join in joins:
            sampling, slot = join.sampling, join.slot
            if sampling.has_penalties:
                seen = self._seen_table()
                generated = self._tensor(np.array(join.tokens[join.prompt_len :], np.int64))
                ones = torch.ones_like(generated, dtype=torch.float32)
                seen.counts[slot].fill_(0.0).index_add_(0, generated, ones)
                prompt = self._tensor(np.array(join.tokens[: join.prompt_len], np.int64))
                seen.in_prompt[slot].fill_(False).index_fill_(0, prompt, True)
            if sampling.logit_bias:
                self._bias = self._table(self._bias)
                ids, values = zip(*sampling.logit_bias.items(), strict=True)
                biases = self._tensor(np.array(values, np.float32))
                self._bias[slot].fill_(0.0).index_copy_(0, self._tensor(np.array(ids, np.int64)), biases)
            if sampling.min_tokens:
                self._stops = self._table(self._stops, torch.bool)
                stops = self._tensor(np.array(sampling.stop_token_ids, np.int64))
                self._stops[slot].fill_(False).index_fill_(0, stops, True)

    def edits_for(self, slots: Ints, lengths: Ints, drafted: SampledRows | None = None) -> LogitEditMask | None:
        """Return the edits for the next logits of slots[R] with texts of lengths[R]; None if there are none.

        drafted: these rows, if some have drafts, which count as generated tokens.
        """
        state = self._slots
        records = state.records[slots]
        too_short = lengths - records["prompt_len"] < records["min_tokens"]
        biased, penalised = state.biased[slots], state.penalised[slots]
        rows = np.flatnonzero(too_short | biased | penalised)
        if not len(rows):
            return None
        drafts = drafted.drafts_before(np.flatnonzero(penalised)) if drafted is not None and penalised.any() else None
        return LogitEditMask(rows, slots[rows], too_short[rows], biased[rows], penalised[rows], drafts)

    def apply(self, logits: Tensor, edits: LogitEditMask, sampling: SamplingTensors) -> None:
        """Edit logits[R, V] float32, contiguous, in place. sampling: of all R rows."""
        if self._stops is not None and edits.too_short.any():
            rows, table_rows = self._indices(edits, edits.too_short)
            logits.index_copy_(0, rows, logits[rows].masked_fill_(self._stops[table_rows], -torch.inf))
        if self._bias is not None and edits.biased.any():
            rows, table_rows = self._indices(edits, edits.biased)
            logits.index_add_(0, rows, self._bias[table_rows])
        if self._seen is not None and edits.penalised.any():
            rows, table_rows = self._indices(edits, edits.penalised)
            seen = self._seen
            if edits.drafts is not None:
                seen, table_rows = self._with_drafts(seen, table_rows, edits.drafts)
            self._kernels.penalize(logits, rows, table_rows, seen, sampling.select(rows))

    def _with_drafts(self, seen: SeenTokens, slots: Tensor, drafts: tuple[Ints, Ints]) -> tuple[SeenTokens, Tensor]:
        """Return tables with a row for each of slots[N], in which drafts are generated tokens; and these rows, [N]."""
        row, token = to_device(drafts, self._device)
        counts = seen.counts[slots].index_put_((row, token), torch.ones((), device=self._device), accumulate=True)
        return SeenTokens(counts, seen.in_prompt[slots]), torch.arange(len(slots), device=self._device)

    def append(self, edits: LogitEditMask | None, token_ids: Tensor, counted: CountedRows | None = None) -> None:
        """Count the sampled token_ids[R] int64, or those of `counted` rows.

        An ID of -1 (a row with NaN) counts for the last token of the vocabulary; its request ends.
        """
        if edits is not None and self._seen is not None and edits.penalised.any():
            rows, table_rows = self._indices(edits, edits.penalised)
            if counted is None:
                self._seen.counts[table_rows, token_ids[rows]] += 1.0
            else:
                added = counted.is_counted[rows].to(torch.float32)
                self._seen.counts.index_put_((table_rows, token_ids[rows]), added, accumulate=True)

    def _indices(self, edits: LogitEditMask, chosen: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        """Return the chosen ones of the edited rows, and their slots, on the device."""
        rows, slots = to_device((edits.rows[chosen], edits.slots[chosen]), self._device)
        return rows, slots

    def _seen_table(self) -> SeenTokens:
        if self._seen is None:
            self._seen = SeenTokens(self._table(None), self._table(None, torch.bool))
        return self._seen

    def _table(self, table: Tensor | None, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(self._size, dtype=dtype, device=self._device) if table is None else table

    def _tensor(self, array: np.ndarray) -> Tensor:
        return to_device((array,), self._device)[0]
