"""Per-slot state on the device (or in host memory for CPU steps) that a step reads and advances.

A slot here is a batch slot: the row of one running sequence. `SlotRecord` describes its parameters once for all back
ends: a numpy structured dtype on the host, bytes on a device, and a C struct (`kernels.cpu.slot_record`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.paging import PagedKV

# Parameters of a sequence that do not change while it occupies its slot. Fields with the name of a field of
# `engine.types.SamplingParams` are copied from it. Laid out as a C compiler does.
SlotRecord = np.dtype(
    [
        ("seed", np.uint64),
        ("choice", np.int64),
        ("prompt_len", np.int32),
        ("min_tokens", np.int32),
        ("logprobs", np.int32),  # alternatives with log-probabilities, -1: no log-probabilities
        ("temperature", np.float32),
        ("top_k", np.int32),  # 0: off
        ("top_p", np.float32),  # 1: off
        ("min_p", np.float32),  # 0: off
        ("top_n_sigma", np.float32),  # 0: off
        ("frequency_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("repetition_penalty", np.float32),
    ],
    align=True,
)
NO_DRAFT_TOKEN = -3  # in place of a draft; differs from the negative IDs of samplers
_TORCH_DTYPES = {"u8": torch.int64, "i8": torch.int64, "i4": torch.int32, "f4": torch.float32}


def has_filters(records: NDArray[np.void]) -> bool:
    """Return whether a filter of any of these records can remove tokens."""
    by_value = (records["min_p"] > 0.0) | (records["top_n_sigma"] > 0.0)
    return bool((by_value | (records["top_k"] > 0) | (records["top_p"] < 1.0)).any())


def as_bytes(records: NDArray[np.void]) -> NDArray[np.uint8]:
    """Return a view of contiguous records[N] as [N, bytes of a record]."""
    return records.view(np.uint8).reshape(len(records), -1)


def field_offset(name: str) -> int:
    """Return the byte offset of a field in a record."""
    assert SlotRecord.fields is not None
    return int(SlotRecord.fields[name][1])


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Sampling parameters of R rows.

    records: [R, bytes of a record] uint8, contiguous. positions: [R] int64, the new token's position in its sequence.
    """

    records: Tensor
    positions: Tensor

    def field(self, name: str) -> Tensor:
        """Return a field of all records as a strided view, [R]; a seed as int64 with the same bits."""
        kind, offset = SlotRecord[name], field_offset(name)
        column = self.records[:, offset : offset + kind.itemsize]
        return column.view(_TORCH_DTYPES[kind.str[1:]]).squeeze(1)

    def to(self, device: torch.device) -> SamplingTensors:
        """Return a copy on another device."""
        return SamplingTensors(self.records.to(device), self.positions.to(device))

    def select(self, rows: Tensor) -> SamplingTensors:
        """Return the parameters of rows[N] int64."""
        return SamplingTensors(self.records.index_select(0, rows), self.positions.index_select(0, rows))


@dataclass(frozen=True, slots=True)
class SlotTensors:
    """State of all slots, one row each, followed by a constant row for padding.

    last_tokens, lengths: [slots + 1] int64; a length includes the last token. page_table: [slots + 1, P] int32.
    records: [slots + 1, bytes of a record] uint8. tokens: [slots + 1, L] int32, contiguous: the known tokens of each
    slot, of which those from its length on are undefined; None if no drafts are looked up.
    """

    last_tokens: Tensor
    lengths: Tensor
    page_table: Tensor
    records: Tensor
    tokens: Tensor | None = None

    @property
    def sampling(self) -> SamplingTensors:
        """Return the sampling parameters of every slot's next token."""
        return SamplingTensors(self.records, self.lengths)

    def sampling_of(self, slot_ids: Tensor, drafts: DraftRows) -> SamplingTensors:
        """Return the sampling parameters of each of B rows of the slots slot_ids[B] int64."""
        sampling = self.sampling.select(slot_ids)
        return SamplingTensors(sampling.records, sampling.positions + drafts.offsets)

    @property
    def padding_slot(self) -> int:
        """Return the index of the padding row."""
        return len(self.lengths) - 1

    @property
    def max_text(self) -> int:
        """Return the number of tokens that can be kept for each slot; 0 if none are kept."""
        return 0 if self.tokens is None else self.tokens.shape[1]


@dataclass(frozen=True, slots=True)
class SlotMasks:
    """Tokens that may follow in each slot of constrained sequences, one row each, and one for padding.

    is_masked: [slots + 1] int32, 0: any token. words: [slots + 1, ceil(V / 32)] int32; bit i % 32 of word i // 32 is
    set if token i is allowed.
    """

    is_masked: Tensor
    words: Tensor


@dataclass(frozen=True, slots=True)
class SeenTokens:
    """Tokens in the text of each slot. counts: [slots, V] float32, how often each was generated. in_prompt: [slots, V]
    bool. Contiguous.
    """

    counts: Tensor
    in_prompt: Tensor


@dataclass(frozen=True)
class PromptRows:
    """Prompt tokens among the B rows of a step.

    positions: [B] int64, position in the sequence, or -1 for a row that decodes its slot's last token.
    token_ids: [B] int64, read only where `positions` is not -1.
    """

    positions: Tensor
    token_ids: Tensor


@dataclass(frozen=True)
class DraftRows:
    """Rows of a step in which a slot may have several, one after another, that read guesses of its next tokens.

    offsets: [B] int64, the number of drafts of its slot before each row; 0 for a row that reads the slot's last token.
    token_ids: [B] int64, the draft that each other row reads, which is the last of these. If it is negative there is no
    draft: the row reads token 0 at the position of its slot's last token, writes no keys and values, and its token
    never counts.
    """

    offsets: Tensor
    token_ids: Tensor


@dataclass(frozen=True)
class StepRows:
    """Model inputs of B rows, one token each.

    token_ids, positions: [B] int64. slot_mapping: [B] int64, the cache position to write keys and values to
    (page * page size + offset), -1 for padding and absent drafts. page_table: [B, width] int32. context_lens: [B]
    int32, the context of decode attention: 0 for prompt tokens, which prefill attention handles.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    page_table: Tensor
    context_lens: Tensor


class HostSlots(Protocol):
    """C-contiguous host arrays with one row per slot.

    tokens: [slots, L] int64, the tokens known when the sequence joined. lengths: [slots] int64; a length includes the
    last token. page_table: [slots, P] int32. records: [slots] of `SlotRecord`.
    """

    @property
    def tokens(self) -> NDArray[np.int64]: ...
    @property
    def lengths(self) -> NDArray[np.int64]: ...
    @property
    def page_table(self) -> NDArray[np.int32]: ...
    @property
    def records(self) -> NDArray[np.void]: ...


@dataclass(frozen=True)
class StepState:
    """State of CPU steps, at fixed addresses. Steps read it and write lengths, last tokens, keys and values.

    last_tokens: [slots or more] int64. cache: keys and values of each layer.
    """

    slots: HostSlots
    last_tokens: Tensor
    cache: tuple[PagedKV, ...]


class PromptChunk(Protocol):
    """Rows of a slot: positions start to start + length - 1, the last `samples` of which are sampled.

    Without drafts they read the slot's tokens. With drafts there are len(drafts) + 1 rows, all sampled: the first reads
    the slot's last token, the others guesses of the tokens that follow it.
    """

    @property
    def slot(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def drafts(self) -> tuple[int, ...]: ...
