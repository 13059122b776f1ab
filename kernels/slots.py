"""What a decode step knows of each slot, where it is computed: data that one kernel can read and advance."""

from __future__ import annotations

from dataclasses import dataclass

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
class DecodeRows:
    """One token for each of B slots. token_ids, positions: [B] int64. places: [B] int64, where its keys and values go
    (page * page size + offset), -1 for nobody. page_table: [B, width] int32. context_lens: [B] int32.
    """

    token_ids: Tensor
    positions: Tensor
    places: Tensor
    page_table: Tensor
    context_lens: Tensor
