"""Back end of the torch references."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.decoder import Linear
from kernels.linear import pack_linear
from kernels.paging import PagedKV
from kernels.plans import DecodePlan, RopePlan
from kernels.quantization import LinearWeight, dense_weight
from kernels.reference.decode_attention import decode_attention, plan_decode
from kernels.reference.decode_step import gather_slots, sample_slots
from kernels.reference.log_probs import log_probs
from kernels.reference.lookup import draft_slots
from kernels.reference.prefill_attention import prefill_attention
from kernels.reference.rms_norm import rms_norm
from kernels.reference.rope_and_cache import plan_rope, rope_and_cache, write_cache
from kernels.reference.sample import sample
from kernels.reference.silu_mul import silu_mul
from kernels.slots import DraftRows, SlotTensors
from kernels.unfused import UnfusedKernels


class ReferenceKernels(UnfusedKernels):
    """`kernels.interface.Kernels` in plain torch."""

    set_threads = staticmethod(torch.set_num_threads)
    rms_norm = staticmethod(rms_norm)
    silu_mul = staticmethod(silu_mul)
    rope_and_cache = staticmethod(rope_and_cache)
    write_cache = staticmethod(write_cache)
    decode_attention = staticmethod(decode_attention)
    prefill_attention = staticmethod(prefill_attention)
    draft_slots = staticmethod(draft_slots)
    gather_slots = staticmethod(gather_slots)
    sample = staticmethod(sample)
    log_probs = staticmethod(log_probs)

    def sample_slots(
        self,
        logits: Tensor,
        slots: SlotTensors,
        slot_ids: Tensor,
        ids: Tensor,
        filtered: bool,
        drafts: DraftRows | None = None,
    ) -> None:
        sample_slots(self.sample, logits, slots, slot_ids, ids, drafts)

    def attend_tiles(
        self,
        q: Tensor,
        kv: PagedKV,
        page_table: Tensor,
        tiles: Tensor,
        out: Tensor,
        scale: float,
        window: int,
    ) -> None:
        """Compute each tile as a chunk. Copies the table from the device, slot_ids synchronises."""
        for table_row, row, queries, position in tiles.tolist():
            if queries:
                rows, pages = slice(row, row + queries), page_table[table_row : table_row + 1]
                chunk = ((0, queries), (position + queries,))
                out[rows] = self.prefill_attention(q[rows], kv, pages, *chunk, scale, window)

    @property
    def multiplies_quantized(self) -> bool:
        return False

    @property
    def robust_to_noisy_cores(self) -> bool:
        return False

    def supports_kv_dtype(self, dtype: torch.dtype, query_heads: int, kv_heads: int, head_dim: int) -> bool:
        return False

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def weight_dtype(self, stored: torch.dtype, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def pack_linear(self, weight: LinearWeight, bias: Tensor | None) -> Linear:
        return pack_linear(dense_weight(weight), bias)

    def plan_rope(self, cos_sin: Tensor, positions: Tensor, slot_mapping: Tensor, kv: PagedKV) -> RopePlan | None:
        return plan_rope(cos_sin, positions, slot_mapping, kv)

    def plan_decode(
        self, page_table: Tensor, context_lens: Tensor, query_heads: int, kv: PagedKV, window: int
    ) -> DecodePlan | None:
        return plan_decode(page_table, context_lens, kv, window)
