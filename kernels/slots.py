"""What a step knows of each slot, where it is computed: data that one kernel can read and advance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class SlotTensors:
    """One row for each slot, and behind them one for nobody, of which nothing ever changes.

    last_tokens, lengths, seed, choice: [slots + 1] int64; a length counts the last token. page_table: [slots + 1, P]
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
    def nobody(self) -> int:
        return len(self.lengths) - 1


@dataclass(frozen=True)
class PromptRows:
    """Which of B rows are tokens of prompts. positions: [B] int64 in their sequences; -1: it is not one, but its slot's
    last token. token_ids: [B] int64, read where there is a position.
    """

    positions: Tensor
    token_ids: Tensor


@dataclass(frozen=True)
class StepRows:
    """One token for each of B rows. token_ids, positions: [B] int64. places: [B] int64, where its keys and values go
    (page * page size + offset), -1 for nobody. page_table: [B, width] int32. context_lens: [B] int32, what decode
    attention looks at: 0 for tokens of prompts, which others attend for.
    """

    token_ids: Tensor
    positions: Tensor
    places: Tensor
    page_table: Tensor
    context_lens: Tensor


class HostSlots(Protocol):
    """Arrays with one row for each slot, in C's order.

    tokens: [slots, L] int64, those that were known when a sequence joined. lengths, seed, choice: [slots] int64; a
    length counts the last token. page_table: [slots, P] int32. temperature, top_p, min_p: [slots] float32. top_k:
    [slots] int32.
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
    """What steps on a CPU read, in memory that stays where it is; they write lengths, last tokens, keys and values.

    last_tokens: each slot's, [slots or more] int64. k, v: the cache, per layer [N, Hkv, S, D].
    """

    slots: HostSlots
    last_tokens: Tensor
    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]


class PromptChunk(Protocol):
    """Positions start to start + length - 1 of a slot's tokens. samples: the next token is wanted."""

    @property
    def slot(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def samples(self) -> bool: ...
