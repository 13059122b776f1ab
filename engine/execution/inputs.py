"""Inputs of one forward pass: tensors only, independent of requests."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ModelInputs:
    """Tokens of one step, flattened without padding: first the decode rows (one token each), then the prefill chunks.

    T tokens, B decode rows, C prefill chunks, P width of a page table, R rows whose logits are needed.
    """

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64, within the token's own sequence
    slot_mapping: Tensor  # [T] int64, page * page size + offset of the token's keys and values; -1: do not write
    num_decodes: int  # B; rows 0 to B - 1 are decode rows, several of a slot with drafts
    decode_page_table: Tensor  # [B, P] int32
    decode_context_lens: Tensor  # [B] int32, own token included
    prefill_page_table: Tensor  # [C, P] int32
    prefill_query_starts: tuple[int, ...]  # C + 1 offsets, counted from row B
    prefill_context_lens: tuple[int, ...]  # C, tokens of the sequence up to and including this chunk
    logit_rows: Tensor | None  # [R] int64, rows of the hidden states to compute logits for; None: all of them
    # [tiles, 4] int32, in the format of `kernels.query_tiles`: rows that are prompt queries in a recorded step, which
    # has a fixed number of rows with variable contents. Such rows have no context among the first B, the prefill page
    # table has a row for each of the T, and starts and lengths are empty. None: not a recorded step with prompts.
    tiles: Tensor | None = None
