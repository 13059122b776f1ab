"""What one forward pass is given. Knows tensors only: which request a row belongs to was settled before."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ModelInputs:
    """One step's tokens, flattened: first the decode rows (one token each), then the prefill chunks, without padding.

    T tokens, B decode rows, C prefill chunks, P width of a page table, R rows whose logits are wanted.
    """

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64, within the token's own sequence
    slots: Tensor  # [T] int64, page * page size + offset of the token's keys and values; -1: do not write
    num_decodes: int  # B; rows 0 to B - 1 are decode rows
    decode_page_table: Tensor  # [B, P] int32
    decode_context_lens: Tensor  # [B] int32, own token included
    prefill_page_table: Tensor  # [C, P] int32
    prefill_query_starts: tuple[int, ...]  # C + 1 offsets, counted from row B
    prefill_context_lens: tuple[int, ...]  # C, tokens of the sequence up to and with this chunk
    logit_rows: Tensor | None  # [R] int64, rows of the hidden states to compute logits for; None: all of them
    # [tiles, 4] int32, as `kernels.query_tiles` has them: which rows are queries of prompts, in a recorded step, whose
    # number of rows is fixed while what is in them is not. Such rows have no context among the first B, the prefill
    # page table has a row for each of the T, and there are no starts and lengths. None: it is not such a step.
    tiles: Tensor | None = None
