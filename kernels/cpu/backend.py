"""Back end of the C++ operations: float32 on a CPU, with weights in float32 or bfloat16.

Every operation computes a row from that row alone, in one fixed order. So a row's bits depend neither on the other rows
nor on the chunks of its sequence (tested in tests/kernels/test_invariance.py).
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu import quantized, structs
from kernels.cpu.decoder import KV_DTYPES, CpuForward, CpuStep, supports_decoder
from kernels.cpu.float8 import float8_matrix
from kernels.cpu.library import load
from kernels.cpu.linear import CpuLinear, PackedEmbedding
from kernels.cpu.quantize import HEAD_BITS, Bits, quantize
from kernels.cpu.structs import address
from kernels.decoder import DecoderShape, DecoderWeights, Embedding, EmbeddingTable, ForwardPass, Linear, StepPass
from kernels.paging import PagedKV
from kernels.plans import DecodePlan, RopeInputs, RopePlan
from kernels.quantization import LinearWeight, QuantizedMatrix, StackedWeight, dense_weight
from kernels.reference.backend import ReferenceKernels
from kernels.reference.decode_attention import write_rows
from kernels.slots import SamplingTensors, SeenTokens, StepState

MAX_HEAD_DIM = 512  # floats; as in source/elementwise.cpp


class CpuKernels(ReferenceKernels):
    """C++ implementation of `kernels.interface.Kernels`.

    Torch computes log probabilities, activations other than float32, and attention with head sizes that have no
    register tiling. allow_bf16_activations: allow rounding the operands that bfloat16 weights, keys and values are
    multiplied with to bfloat16, if that is faster; everything else stays in float32. weight_bits: quantise the
    matrices of layers that are not quantised. Raises `kernels.cpu.library.CompileError`.
    """

    def __init__(self, allow_bf16_activations: bool = False, weight_bits: Bits | None = None) -> None:
        self._library = load()
        self._allow_bf16_activations = allow_bf16_activations
        self._weight_bits = weight_bits

    @property
    def multiplies_quantized(self) -> bool:
        return True

    @property
    def robust_to_noisy_cores(self) -> bool:
        return True

    def set_threads(self, threads: int) -> None:
        # Torch computes little here, and its threads would spin on the cores that this pool needs.
        torch.set_num_threads(1)
        self._library.carousel_set_threads(threads)

    def count_progress(self, counter: int | None) -> None:
        self._library.carousel_count_progress(counter)

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float32

    def weight_dtype(self, stored: torch.dtype, dtype: torch.dtype) -> torch.dtype:
        return stored if dtype == torch.float32 and stored == torch.bfloat16 else dtype

    def supports_kv_dtype(self, dtype: torch.dtype, query_heads: int, kv_heads: int, head_dim: int) -> bool:
        return dtype in KV_DTYPES and self._has_tiling(head_dim, query_heads // kv_heads)

    def pack_linear(self, weight: LinearWeight, bias: Tensor | None) -> Linear:
        return self._pack(weight, bias, self._weight_bits)

    def pack_head(self, weight: LinearWeight, bias: Tensor | None) -> CpuLinear:
        return self._pack(weight, bias, self._weight_bits and HEAD_BITS)

    def pack_embedding(self, weight: LinearWeight) -> Embedding:
        if isinstance(weight, Tensor) and not self._weight_bits:
            return EmbeddingTable(weight)
        return PackedEmbedding(self.pack_head(weight, None))

    def pack_tied_embedding(self, weight: LinearWeight) -> tuple[Embedding, Linear]:
        head = self.pack_head(weight, None)
        return PackedEmbedding(head), head

    def _pack(self, weight: LinearWeight, bias: Tensor | None, bits: Bits | None) -> CpuLinear:
        if bits and isinstance(weight, Tensor):
            weight = StackedWeight([quantize(weight, bits)])
        matrix: Tensor | list[QuantizedMatrix] | None = None
        if not isinstance(weight, Tensor):
            floats = float8_matrix(weight.parts)
            matrix = quantized.packable(weight.parts) if floats is None else [floats]
        if matrix is None:
            matrix = dense_weight(weight)
        return CpuLinear(matrix, bias, allow_bf16_activations=self._allow_bf16_activations)

    def prepare_decoder(self, shape: DecoderShape, weights: DecoderWeights) -> ForwardPass | None:
        return CpuForward(shape, weights, self._allow_bf16_activations) if supports_decoder(shape, weights) else None

    def prepare_step(self, shape: DecoderShape, weights: DecoderWeights, state: StepState) -> StepPass | None:
        if not supports_decoder(shape, weights):
            return None
        return CpuStep(shape, weights, self._allow_bf16_activations, state)

    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, layer: Linear) -> Tensor:
        if x.dtype != torch.float32 or not isinstance(layer, CpuLinear):
            return super().norm_linear(x, norm, eps, layer)
        return layer.multiply_normed(x, norm, eps)

    def add_linear(self, x: Tensor, layer: Linear, residual: Tensor, multiplier: float = 1.0) -> None:
        if residual.dtype != torch.float32 or not isinstance(layer, CpuLinear):
            super().add_linear(x, layer, residual, multiplier)
            return
        layer.add_to(x, residual, multiplier)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.dtype != torch.float32:
            return super().rms_norm(x, weight, eps)
        out = torch.empty_like(x)
        self._library.carousel_rms_norm(x.data_ptr(), weight.data_ptr(), x.shape[0], x.shape[1], eps, out.data_ptr())
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        if gate_up.dtype != torch.float32:
            return super().silu_mul(gate_up)
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, size))
        self._library.carousel_silu_mul(gate_up.data_ptr(), rows, size, out.data_ptr())
        return out

    def plan_rope(self, cos_sin: Tensor, positions: Tensor, slot_mapping: Tensor, kv: PagedKV) -> RopePlan | None:
        if kv.dtype not in KV_DTYPES or kv.head_dim > MAX_HEAD_DIM:
            return super().plan_rope(cos_sin, positions, slot_mapping, kv)
        return None

    def rope_and_cache(self, q: Tensor, k: Tensor, v: Tensor, kv: PagedKV, rope: RopeInputs) -> Tensor:
        if q.dtype != torch.float32 or q.shape[2] > MAX_HEAD_DIM:
            return super().rope_and_cache(q, k, v, kv, rope)
        rows, query_heads, dim = q.shape
        out = torch.empty((rows, query_heads, dim))
        arguments = structs.Rope(
            q=address(q),
            k=address(k),
            v=address(v),
            q_stride=q.stride(0),
            k_stride=k.stride(0),
            v_stride=v.stride(0),
            cos_sin=address(rope.cos_sin),
            k_cache=address(kv.k),
            v_cache=address(kv.v),
            q_norm=address(rope.q_norm),
            k_norm=address(rope.k_norm),
            eps=rope.eps,
            query_heads=query_heads,
            kv_heads=k.shape[1],
            dim=dim,
            rotary=rope.cos_sin.shape[1],
            page_size=kv.page_size,
            page_stride=kv.page_stride,
            is_bf16=kv.dtype == torch.bfloat16,
        )
        mapping = address(rope.slot_mapping)
        self._library.carousel_rope_and_cache(arguments, address(rope.positions), mapping, rows, address(out))
        return out

    def write_cache(self, k: Tensor, v: Tensor, slot_mapping: Tensor, kv: PagedKV) -> None:
        if k.dtype != torch.float32 or kv.dtype not in KV_DTYPES:
            super().write_cache(k, v, slot_mapping, kv)
            return
        rows, heads, dim = k.shape
        k, v = k.contiguous(), v.contiguous()
        destination = structs.Rope(
            k=address(k),
            v=address(v),
            k_stride=k.stride(0),
            v_stride=v.stride(0),
            k_cache=address(kv.k),
            v_cache=address(kv.v),
            kv_heads=heads,
            dim=dim,
            page_size=kv.page_size,
            page_stride=kv.page_stride,
            is_bf16=kv.dtype == torch.bfloat16,
        )
        self._library.carousel_write_cache(destination, address(slot_mapping), rows)

    def plan_decode(
        self, page_table: Tensor, context_lens: Tensor, query_heads: int, kv: PagedKV, window: int
    ) -> DecodePlan | None:
        if self._supports(query_heads, kv):
            return None
        return super().plan_decode(page_table, context_lens, query_heads, kv, window)

    def decode_attention(
        self,
        q: Tensor,
        kv: PagedKV,
        page_table: Tensor,
        context_lens: Tensor,
        scale: float,
        window: int,
        plan: DecodePlan | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        if q.dtype != torch.float32 or not self._supports(q.shape[1], kv):
            return super().decode_attention(q, kv, page_table, context_lens, scale, window, plan, out)
        result = self._attend(q, kv, page_table, None, context_lens.data_ptr(), scale, window)
        return result if out is None else write_rows(result, context_lens, out)

    def prefill_attention(
        self,
        q: Tensor,
        kv: PagedKV,
        page_table: Tensor,
        query_starts: tuple[int, ...],
        context_lens: tuple[int, ...],
        scale: float,
        window: int,
    ) -> Tensor:
        if q.dtype != torch.float32 or not self._supports(q.shape[1], kv):
            return super().prefill_attention(q, kv, page_table, query_starts, context_lens, scale, window)
        starts = (ctypes.c_int64 * len(query_starts))(*query_starts)
        contexts = (ctypes.c_int32 * len(context_lens))(*context_lens)
        return self._attend(
            q,
            kv,
            page_table,
            ctypes.addressof(starts),
            ctypes.addressof(contexts),
            scale,
            window,
        )

    def _attend(
        self,
        q: Tensor,
        kv: PagedKV,
        page_table: Tensor,
        query_starts: int | None,
        context_lens: int,
        scale: float,
        window: int,
    ) -> Tensor:
        """Run attention of C chunks.

        query_starts: address of C + 1 int64, None for one query per chunk. context_lens: address of C int32.
        """
        q, page_table = q.contiguous(), page_table.contiguous()
        out = torch.empty_like(q)
        problem = structs.Attention(
            q=address(q),
            k=address(kv.k),
            v=address(kv.v),
            page_table=address(page_table),
            width=page_table.shape[1],
            chunks=page_table.shape[0],
            query_starts=query_starts,
            context_lens=context_lens,
            query_heads=q.shape[1],
            kv_heads=kv.heads,
            dim=kv.head_dim,
            page_size=kv.page_size,
            page_stride=kv.page_stride,
            window=window,
            is_bf16=kv.dtype == torch.bfloat16,
            scale=scale,
            allow_bf16_activations=self._allow_bf16_activations,
        )
        self._library.carousel_attention(problem, out.data_ptr())
        return out

    def penalize(
        self, logits: Tensor, rows: Tensor, slot_ids: Tensor, seen: SeenTokens, sampling: SamplingTensors
    ) -> None:
        arguments = structs.Penalties(
            logits=address(logits),
            rows=address(rows),
            slots=address(slot_ids),
            counts=address(seen.counts),
            in_prompt=address(seen.in_prompt),
            records=address(sampling.records),
            count=len(rows),
            vocabulary=logits.shape[1],
        )
        self._library.carousel_penalize(arguments)

    def mask_logits(self, logits: Tensor, rows: Tensor, masks: Tensor) -> Tensor:
        masks = masks.contiguous()
        is_empty = torch.zeros(len(rows), dtype=torch.uint8)
        arguments = structs.Masking(
            logits=address(logits),
            rows=address(rows),
            masks=address(masks),
            is_empty=address(is_empty),
            count=len(rows),
            vocabulary=logits.shape[1],
        )
        self._library.carousel_mask_logits(arguments)
        return is_empty.bool()

    def sample(self, logits: Tensor, sampling: SamplingTensors) -> Tensor:
        logits = logits.to(torch.float32).contiguous()
        rows, vocabulary = logits.shape
        ids = torch.empty(rows, dtype=torch.int64)
        arguments = structs.Sampling(
            logits=address(logits),
            rows=rows,
            vocabulary=vocabulary,
            records=address(sampling.records),
            positions=address(sampling.positions),
            ids=address(ids),
        )
        self._library.carousel_sample(arguments)
        return ids

    def _supports(self, query_heads: int, kv: PagedKV) -> bool:
        return kv.dtype in KV_DTYPES and self._has_tiling(kv.head_dim, query_heads // kv.heads)

    def _has_tiling(self, head_dim: int, group: int) -> bool:
        return bool(self._library.carousel_supports_attention(head_dim, group))
