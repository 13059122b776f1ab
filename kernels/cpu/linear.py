"""Linear layers with weights packed for the local processor; see source/linear.h."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu import structs
from kernels.cpu.library import load
from kernels.cpu.structs import Layout, address
from kernels.huge_pages import Arena

ALL_PARTS = 3  # bfloat16 values that represent a float32 exactly
WEIGHTS = Arena()


def layouts(dtype: torch.dtype, allow_bf16_activations: bool = False) -> list[Layout]:
    """Return the layouts for weights of `dtype` that this processor supports, fastest first.

    With `allow_bf16_activations`, include layouts that round the activations to bfloat16.
    """
    if dtype == torch.float32:
        return [Layout.FLOAT_PANELS]
    assert dtype == torch.bfloat16, dtype
    possible = [Layout.BFLOAT16_TILES, Layout.BFLOAT16_PANELS]
    if allow_bf16_activations:
        possible.insert(0, Layout.BFLOAT16_PAIRS)
    return [one for one in possible if load().carousel_has_layout(one)]


class CpuLinear:
    """Linear layer y = x @ weight.T + bias. `struct` is its C++ description, valid as long as this object lives."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, layout: Layout | None = None, allow_bf16_activations: bool = False
    ) -> None:
        """Pack weight[N, K] float32 or bfloat16, and bias[N] or None; no reference to `weight` is kept.

        layout: by default the fastest. allow_bf16_activations: allow rounding `x` to bfloat16 if that is faster.
        """
        library = load()
        outputs, inputs = weight.shape
        possible = layouts(weight.dtype, allow_bf16_activations)
        layout = possible[0] if layout is None else layout
        assert layout in possible, layout
        words = library.carousel_packed_words(outputs, inputs, layout)
        self._packed = WEIGHTS.allocate((words,), torch.int32)
        self._bias = None if bias is None else bias.float().contiguous()
        weight = weight.contiguous()
        library.carousel_pack(address(weight), outputs, inputs, layout, address(self._packed))
        parts = 1 if allow_bf16_activations else ALL_PARTS
        self.struct = structs.Linear(address(self._packed), address(self._bias), outputs, inputs, layout, parts)
        self._multiply, self._norm_and_multiply = library.carousel_linear, library.carousel_norm_linear
        self._outputs = outputs

    def __call__(self, x: Tensor) -> Tensor:
        """Compute x[T, K] -> [T, N] in float32, returned in x's dtype (models run by transformers pass bfloat16)."""
        floats = x.float().contiguous()
        out = torch.empty((x.shape[0], self._outputs))
        self._multiply(self.struct, floats.data_ptr(), x.shape[0], out.data_ptr())
        return out.to(x.dtype)

    def multiply_normed(self, x: Tensor, norm: Tensor, eps: float) -> Tensor:
        """Compute the layer of rms_norm(x): x[T, K] float32, norm[K] float32 -> [T, N]; see source/norm.h."""
        out = torch.empty((x.shape[0], self._outputs))
        self._norm_and_multiply(self.struct, address(x), address(norm), eps, x.shape[0], address(out))
        return out
