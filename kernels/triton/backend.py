"""Triton back end. Importing this module imports Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.quantize import HEAD_BITS, Bits, quantize
from kernels.decoder import Embedding, EmbeddingTable, Linear
from kernels.paging import PagedKV
from kernels.plans import DecodePlan, RopePlan
from kernels.quantization import LinearWeight, StackedWeight, dense_weight
from kernels.reference.log_probs import log_probs
from kernels.triton.decode_attention import decode_attention, max_head_dim
from kernels.triton.decode_step import gather_slots
from kernels.triton.decode_tasks import plan_decode
from kernels.triton.dequantize import Scratch
from kernels.triton.device_limits import shared_bytes
from kernels.triton.lookup import draft_slots
from kernels.triton.mask import mask_slots
from kernels.triton.packed_matrix import pack_parts
from kernels.triton.pdl import PDL_SWITCH, uses_pdl
from kernels.triton.prefill_attention import attend_tiles, prefill_attention
from kernels.triton.quantized_linear import PackedEmbedding, QuantizedLinear
from kernels.triton.rms_norm import rms_norm
from kernels.triton.rope_and_cache import rope_and_cache, write_cache
from kernels.triton.sample import sample, sample_slots
from kernels.triton.silu_mul import silu_mul
from kernels.triton.skinny_gemm import DenseLinear
from kernels.unfused import UnfusedKernels


class TritonKernels(UnfusedKernels):
    """Triton implementation of `kernels.interface.Kernels`; products of many rows use torch.

    Index arithmetic is free inside a kernel, so rotary embedding needs no plan. weight_bits: quantise the matrices of
    layers that are not quantised, on the host.
    """

    set_threads = staticmethod(torch.set_num_threads)
    rms_norm = staticmethod(rms_norm)
    silu_mul = staticmethod(silu_mul)
    rope_and_cache = staticmethod(rope_and_cache)
    write_cache = staticmethod(write_cache)
    decode_attention = staticmethod(decode_attention)
    prefill_attention = staticmethod(prefill_attention)
    attend_tiles = staticmethod(attend_tiles)
    draft_slots = staticmethod(draft_slots)
    gather_slots = staticmethod(gather_slots)
    mask_slots = staticmethod(mask_slots)
    sample = staticmethod(sample)
    sample_slots = staticmethod(sample_slots)
    log_probs = staticmethod(log_probs)

    def __init__(self, weight_bits: Bits | None = None) -> None:
        self._weight_bits = weight_bits
        self._scratches: dict[tuple[torch.dtype, torch.device], Scratch] = {}

    def pack_linear(self, weight: LinearWeight, bias: Tensor | None) -> Linear:
        return self._multiply(_quantized(weight, self._weight_bits), bias)

    def pack_head(self, weight: LinearWeight, bias: Tensor | None) -> Linear:
        return self._multiply(_quantized(weight, self._weight_bits and HEAD_BITS), bias)

    def pack_embedding(self, weight: LinearWeight) -> Embedding:
        embedding, _ = self.pack_tied_embedding(weight)
        return embedding

    def pack_tied_embedding(self, weight: LinearWeight) -> tuple[Embedding, Linear]:
        weight = _quantized(weight, self._weight_bits and HEAD_BITS)
        layer = self._pack(weight, None)
        if isinstance(weight, Tensor) or layer is None or len(layer.matrices) > 1:
            table = dense_weight(weight)
            return EmbeddingTable(table), self._multiply_dense(table, None)
        return PackedEmbedding(layer.matrices[0], weight.dtype), self._multiply_quantized(layer)

    def _multiply(self, weight: LinearWeight, bias: Tensor | None) -> Linear:
        layer = self._pack(weight, bias)
        return self._multiply_dense(dense_weight(weight), bias) if layer is None else self._multiply_quantized(layer)

    def _pack(self, weight: LinearWeight, bias: Tensor | None) -> QuantizedLinear | None:
        """Return the layer of a weight that stays quantised; None if it does not."""
        if isinstance(weight, Tensor) or (matrices := pack_parts(weight.parts, weight.device)) is None:
            return None
        scratch = self._scratches.setdefault((weight.dtype, weight.device), Scratch(weight.dtype, weight.device))
        return QuantizedLinear(matrices, bias, scratch)

    @staticmethod
    def _multiply_dense(weight: Tensor, bias: Tensor | None) -> Linear:
        return DenseLinear(weight, bias)

    @staticmethod
    def _multiply_quantized(layer: QuantizedLinear) -> Linear:
        return layer

    def use_early_launch(self, allowed: bool) -> bool:
        PDL_SWITCH.is_on = allowed
        return torch.cuda.is_available() and uses_pdl(torch.device("cuda", torch.cuda.current_device()))

    def max_head_dim(self, dtype: torch.dtype, device: torch.device) -> int | None:
        return max_head_dim(dtype.itemsize, shared_bytes(device))

    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, layer: Linear) -> Tensor:
        if isinstance(layer, DenseLinear | QuantizedLinear) and layer.supports(x):
            return layer.multiply_skinny(x, norm, eps)
        return super().norm_linear(x, norm, eps, layer)

    def norm_gated_linear(self, x: Tensor, norm: Tensor, eps: float, layer: Linear) -> Tensor:
        if isinstance(layer, DenseLinear | QuantizedLinear) and layer.supports(x, gated=True):
            return layer.multiply_skinny(x, norm, eps, gated=True)
        return super().norm_gated_linear(x, norm, eps, layer)

    def add_linear(self, x: Tensor, layer: Linear, residual: Tensor, multiplier: float = 1.0) -> None:
        if isinstance(layer, DenseLinear | QuantizedLinear) and multiplier == 1.0:
            layer.add_to(x, residual)
        else:
            super().add_linear(x, layer, residual, multiplier)

    @property
    def multiplies_quantized(self) -> bool:
        return True

    @property
    def robust_to_noisy_cores(self) -> bool:
        return True

    def supports_kv_dtype(self, dtype: torch.dtype, query_heads: int, kv_heads: int, head_dim: int) -> bool:
        return False

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def weight_dtype(self, stored: torch.dtype, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def plan_rope(self, cos_sin: Tensor, positions: Tensor, slot_mapping: Tensor, kv: PagedKV) -> RopePlan | None:
        return None

    def plan_decode(
        self, page_table: Tensor, context_lens: Tensor, query_heads: int, kv: PagedKV, window: int
    ) -> DecodePlan | None:
        return plan_decode(page_table, context_lens, kv, window)


def _quantized(weight: LinearWeight, bits: Bits | None) -> LinearWeight:
    """Return a weight in `bits` bits, unless these are None or it is quantised already."""
    if bits is None or not isinstance(weight, Tensor):
        return weight
    return StackedWeight([quantize(weight.cpu(), bits)], weight.dtype, weight.device)
