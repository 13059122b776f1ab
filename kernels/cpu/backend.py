"""The C++ operations gathered into one back end: float32 on a CPU, weights in float32 or bfloat16.

Every operation computes a row from that row alone, in one fixed order, so a row has the same bits whatever is computed
with it and however its sequence was cut into chunks; tests/kernels/test_invariance.py holds it to that.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu.library import load
from kernels.interface import Linear
from kernels.plans import DecodePlan, RopePlan
from kernels.reference.backend import ReferenceKernels


class CpuLinear:
    """y = x @ weight.T + bias over a weight laid out in panels; see source/linear.h."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight[N, K] float32 or bfloat16, bias[N] float32 or None. Nothing of `weight` is kept."""
        self._multiply = load().carousel_linear
        self._outputs, self._inputs = weight.shape
        self._is_bf16 = int(weight.dtype == torch.bfloat16)
        words = load().carousel_packed_words(self._outputs, self._inputs, self._is_bf16)
        self._packed = torch.empty(words, dtype=torch.int32 if self._is_bf16 else torch.float32)
        pack = load().carousel_pack_bf16 if self._is_bf16 else load().carousel_pack_f32
        weight = weight.contiguous()
        pack(weight.data_ptr(), self._outputs, self._inputs, self._packed.data_ptr())
        self._bias = bias
        self._address = self._packed.data_ptr()
        self._bias_address = None if bias is None else bias.data_ptr()

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, K] float32 -> [T, N] float32."""
        x = x.contiguous()
        rows = x.shape[0]
        out = torch.empty((rows, self._outputs))
        self._multiply(
            x.data_ptr(),
            rows,
            self._inputs,
            self._address,
            self._is_bf16,
            self._outputs,
            self._bias_address,
            out.data_ptr(),
        )
        return out


class CpuKernels(ReferenceKernels):
    """`kernels.interface.Kernels`. Torch does the sampling, whatever is not float32, and attention with heads of a size
    that no register tiling was made for. Raises `kernels.cpu.library.CannotCompile`.
    """

    def __init__(self) -> None:
        self._library = load()

    @property
    def tolerates_neighbours(self) -> bool:
        return True

    def set_threads(self, threads: int) -> None:
        # What is left to torch is small, and its threads would spin on the cores that ours need.
        torch.set_num_threads(1)
        self._library.carousel_set_threads(threads)

    def holds(self, dtype: torch.dtype) -> bool:
        return dtype in (torch.float32, torch.bfloat16)

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return CpuLinear(weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.dtype != torch.float32:
            return super().rms_norm(x, weight, eps)
        out = torch.empty_like(x)
        self._library.carousel_rms_norm(x.data_ptr(), weight.data_ptr(), x.shape[0], x.shape[1], eps, out.data_ptr())
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        if x.dtype != torch.float32:
            return super().add_rms_norm(x, residual, weight, eps)
        out = torch.empty_like(x)
        self._library.carousel_add_rms_norm(
            x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            x.shape[0],
            x.shape[1],
            eps,
            out.data_ptr(),
        )
        return out, x

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        if gate_up.dtype != torch.float32:
            return super().silu_mul(gate_up)
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, size))
        self._library.carousel_silu_mul(gate_up.data_ptr(), rows, size, out.data_ptr())
        return out

    def plan_rope(self, cos_sin: Tensor, positions: Tensor, slots: Tensor, k_cache: Tensor) -> RopePlan | None:
        if k_cache.dtype != torch.float32:
            return super().plan_rope(cos_sin, positions, slots, k_cache)
        return None

    def rope_and_cache(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
        plan: RopePlan | None = None,
    ) -> Tensor:
        if q.dtype != torch.float32:
            return super().rope_and_cache(
                q, k, v, cos_sin, positions, slots, k_cache, v_cache, q_norm, k_norm, eps, plan
            )
        rows, query_heads, dim = q.shape
        out = torch.empty((rows, query_heads, dim))
        self._library.carousel_rope_and_cache(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            q.stride(0),
            k.stride(0),
            v.stride(0),
            cos_sin.data_ptr(),
            positions.data_ptr(),
            slots.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            None if q_norm is None else q_norm.data_ptr(),
            None if k_norm is None else k_norm.data_ptr(),
            eps,
            rows,
            query_heads,
            k.shape[1],
            dim,
            k_cache.shape[2],
            out.data_ptr(),
        )
        return out

    def write_cache(self, k: Tensor, v: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        if k_cache.dtype != torch.float32:
            super().write_cache(k, v, slots, k_cache, v_cache)
            return
        rows, heads, dim = k.shape
        k, v = k.contiguous(), v.contiguous()
        self._library.carousel_write_cache(
            k.data_ptr(),
            v.data_ptr(),
            k.stride(0),
            v.stride(0),
            slots.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            rows,
            heads,
            dim,
            k_cache.shape[2],
        )

    def plan_decode(
        self, page_table: Tensor, context_lens: Tensor, query_heads: int, k_cache: Tensor, window: int
    ) -> DecodePlan | None:
        if self._fits(query_heads, k_cache):
            return None
        return super().plan_decode(page_table, context_lens, query_heads, k_cache, window)

    def decode_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        context_lens: Tensor,
        scale: float,
        window: int,
        plan: DecodePlan | None = None,
    ) -> Tensor:
        if not self._fits(q.shape[1], k_cache):
            return super().decode_attention(q, k_cache, v_cache, page_table, context_lens, scale, window, plan)
        return self._attend(q, k_cache, v_cache, page_table, None, context_lens.data_ptr(), scale, window)

    def prefill_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        query_starts: tuple[int, ...],
        context_lens: tuple[int, ...],
        scale: float,
        window: int,
    ) -> Tensor:
        if not self._fits(q.shape[1], k_cache):
            return super().prefill_attention(q, k_cache, v_cache, page_table, query_starts, context_lens, scale, window)
        starts = (ctypes.c_int64 * len(query_starts))(*query_starts)
        contexts = (ctypes.c_int32 * len(context_lens))(*context_lens)
        return self._attend(
            q,
            k_cache,
            v_cache,
            page_table,
            ctypes.addressof(starts),
            ctypes.addressof(contexts),
            scale,
            window,
        )

    def _attend(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        query_starts: int | None,
        context_lens: int,
        scale: float,
        window: int,
    ) -> Tensor:
        """query_starts: address of C + 1 int64, None for one query each. context_lens: address of C int32."""
        q, page_table = q.contiguous(), page_table.contiguous()
        out = torch.empty_like(q)
        _, kv_heads, page_size, dim = k_cache.shape
        self._library.carousel_attention(
            q.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            out.data_ptr(),
            page_table.data_ptr(),
            page_table.shape[1],
            query_starts,
            context_lens,
            page_table.shape[0],
            q.shape[1],
            kv_heads,
            dim,
            page_size,
            window,
            scale,
        )
        return out

    def _fits(self, query_heads: int, k_cache: Tensor) -> bool:
        group = query_heads // k_cache.shape[1]
        return k_cache.dtype == torch.float32 and bool(self._library.carousel_attention_fits(k_cache.shape[3], group))
