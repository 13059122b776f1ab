"""Per-slot state on the device (or in host memory for CPU steps) that a step reads and advances.

A slot here is a batch slot: the row of one running sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class SlotTensors:
    """State of all slots, one row each, followed by a constant row for padding.

    last_tokens, lengths, seed, choice: [slots + 1] int64; a length includes the last token. page_table: [slots + 1, P]
    int32. temperature, top_p, min_p: [slots + 1] float32. top_k: [slots + 1] int32.
    """

    last_tokens: Tensor
    lengths: Tensor
    page_table: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    choice: Tensor

    @property
    def padding_slot(self) -> int:
        """Return the index of the padding row."""
        return len(self.lengths) - 1


@dataclass(frozen=True)
class PromptRows:
    """Prompt tokens among the B rows of a step.

    positions: [B] int64, position in the sequence, or -1 for a row that decodes its slot's last token.
    token_ids: [B] int64, read only where `positions` is not -1.
    """

    positions: Tensor
    token_ids: Tensor


@dataclass(frozen=True)
class StepRows:
    """Model inputs of B rows, one token each.

    token_ids, positions: [B] int64. places: [B] int64, the cache position to write keys and values to
    (page * page size + offset), -1 for padding. page_table: [B, width] int32. context_lens: [B] int32, the context of
    decode attention: 0 for prompt tokens, which prefill attention handles.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    page_table: Tensor
    context_lens: Tensor


class HostSlots(Protocol):
    """C-contiguous host arrays with one row per slot.

    tokens: [slots, L] int64, the tokens known when the sequence joined. lengths, seed, choice: [slots] int64; a length
    includes the last token. page_table: [slots, P] int32. temperature, top_p, min_p: [slots] float32. top_k: [slots]
    int32.
    """

    @property
    def tokens(self) -> NDArray[np.int64]: ...
    @property
    def lengths(self) -> NDArray[np.int64]: ...
    @property
    def page_table(self) -> NDArray[np.int32]: ...
    @property
    def temperature(self) -> NDArray[np.float32]: ...
    @property
    def top_k(self) -> NDArray[np.int32]: ...
    @property
    def top_p(self) -> NDArray[np.float32]: ...
    @property
    def min_p(self) -> NDArray[np.float32]: ...
    @property
    def seed(self) -> NDArray[np.int64]: ...
    @property
    def choice(self) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class StepState:
    """State of CPU steps, at fixed addresses. Steps read it and write lengths, last tokens, keys and values.

    last_tokens: [slots or more] int64. k, v: the cache, per layer [N, Hkv, S, D].
    """

    slots: HostSlots
    last_tokens: Tensor
    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]


class PromptChunk(Protocol):
    """Prefill chunk: positions start to start + length - 1 of a slot's tokens. samples: sample the next token."""

    @property
    def slot(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def samples(self) -> bool: ...
