"""Linear layers with weights packed for the local processor; see source/linear.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu import structs
from kernels.cpu.float8 import group_of, pack_float8
from kernels.cpu.library import load
from kernels.cpu.quantized import packed_segments
from kernels.cpu.structs import Layout, address
from kernels.huge_pages import Arena
from kernels.quantization import QuantizedMatrix

ALL_PARTS = 3  # bfloat16 values that represent a float32 exactly
QUANTIZED_PARTS = 2  # 8-bit values that represent a float32 within 15 bits of the largest of a block
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
        self,
        weight: Tensor | Sequence[QuantizedMatrix],
        bias: Tensor | None,
        layout: Layout | None = None,
        allow_bf16_activations: bool = False,
    ) -> None:
        """Pack a weight, and bias[N] or None; no reference to `weight` is kept.

        weight: [N, K] float32 or bfloat16, or quantised matrices that are stacked by outputs; all but the last of
        these must have whole panels of outputs. One in float8 is alone. layout: by default the fastest; of quantised
        matrices there is one. allow_bf16_activations: allow rounding `x` to bfloat16 if that is faster, or to 8 instead
        of 15 bits for quantised matrices, but those in float8.
        """
        self._bias = None if bias is None else bias.float().contiguous()
        if isinstance(weight, Tensor):
            self.struct = self._pack(weight, layout, allow_bf16_activations)
        elif weight[0].scheme.is_float8:
            self.struct = self._pack_float8(weight)
        else:
            self.struct = self._pack_quantized(weight, allow_bf16_activations)
        library = load()
        self._multiply, self._norm_and_multiply = library.carousel_linear, library.carousel_norm_linear
        self._outputs = self.struct.outputs

    def _pack(self, weight: Tensor, layout: Layout | None, allow_bf16_activations: bool) -> structs.Linear:
        library = load()
        outputs, inputs = weight.shape
        possible = layouts(weight.dtype, allow_bf16_activations)
        layout = possible[0] if layout is None else layout
        assert layout in possible, layout
        words = library.carousel_packed_words(outputs, inputs, layout)
        self._packed = [WEIGHTS.allocate((words,), torch.int32)]
        weight = weight.contiguous()
        library.carousel_pack(address(weight), outputs, inputs, layout, address(self._packed[0]))
        parts = 1 if allow_bf16_activations else ALL_PARTS
        return structs.Linear(address(self._packed[0]), address(self._bias), outputs, inputs, layout, parts)

    def _pack_quantized(self, matrices: Sequence[QuantizedMatrix], allow_bf16_activations: bool) -> structs.Linear:
        self._segments, self._packed = packed_segments(matrices, WEIGHTS)
        outputs, inputs = sum(matrix.shape[0] for matrix in matrices), matrices[0].shape[1]
        parts = 1 if allow_bf16_activations else QUANTIZED_PARTS
        packed = ctypes.addressof(self._segments)
        return structs.Linear(packed, address(self._bias), outputs, inputs, Layout.QUANTIZED, parts)

    def _pack_float8(self, matrices: Sequence[QuantizedMatrix]) -> structs.Linear:
        [matrix] = matrices
        self._packed = [pack_float8(matrix, WEIGHTS)]
        shape, group = matrix.shape, group_of(matrix)
        return structs.Linear(address(self._packed[0]), address(self._bias), *shape, Layout.FLOAT8_PANELS, 1, group)

    @property
    def packed_bytes(self) -> int:
        """Return the bytes of the packed weights."""
        return sum(packed.nbytes for packed in self._packed)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute x[T, K] -> [T, N] in float32, returned in x's dtype (models run by transformers pass bfloat16)."""
        floats = x.float().contiguous()
        out = torch.empty((x.shape[0], self._outputs))
        self._multiply(self.struct, floats.data_ptr(), x.shape[0], out.data_ptr())
        return out.to(x.dtype)

    def weights_of(self, outputs: Tensor) -> Tensor:
        """Return the weights of outputs[T] int64, [T, K] float32."""
        outputs = outputs.contiguous()
        found = torch.empty((outputs.shape[0], self.struct.inputs))
        load().carousel_unpack_rows(self.struct, address(outputs), outputs.shape[0], address(found))
        return found

    def add_to(self, x: Tensor, residual: Tensor, multiplier: float) -> None:
        """Add the layer of x[T, K], times `multiplier`, to residual[T, N] float32, contiguous; see source/result.h."""
        assert residual.is_contiguous()
        floats = x.float().contiguous()
        load().carousel_add_linear(self.struct, address(floats), x.shape[0], multiplier, address(residual))

    def multiply_normed(self, x: Tensor, norm: Tensor, eps: float) -> Tensor:
        """Compute the layer of rms_norm(x): x[T, K] float32, norm[K] float32 -> [T, N]; see source/norm.h."""
        out = torch.empty((x.shape[0], self._outputs))
        self._norm_and_multiply(self.struct, address(x), address(norm), eps, x.shape[0], address(out))
        return out


@dataclass(frozen=True)
class PackedEmbedding:
    """Embedding that is the weight of a layer, whose outputs are the tokens; `kernels.decoder.Embedding`."""

    layer: CpuLinear

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layer.struct.outputs, self.layer.struct.inputs

    def lookup(self, token_ids: Tensor) -> Tensor:
        return self.layer.weights_of(token_ids)
