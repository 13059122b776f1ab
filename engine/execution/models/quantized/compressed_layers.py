"""Tensors of compressed-tensors' formats (compressed_tensors/compressors).

pack-quantized: weight_packed int32 [N, K x bits / 32], weight_shape, weight_scale, weight_zero_point packed along N, or
in int8, and weight_g_idx. int-quantized and naive-quantized: weight int8 [N, K], weight_scale, weight_zero_point int8.
float-quantized: weight float8_e4m3fn. A weight is `scale * (code - zero)`, of signed codes; packed ones, and zero
points, are stored with half of their range added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.execution.models.errors import WeightsError
from engine.execution.models.quantized.fp8 import FLOAT8, fp8_matrix, require_grid
from engine.execution.models.quantized.gptq import permuted, read_group_indices
from engine.execution.models.quantized.interface import (
    CodedMatrix,
    DenseMatrix,
    Layer,
    coded_matrix,
    read_scales,
    require,
    require_matrix,
    unpack_words,
)
from engine.execution.models.tensor_table import TensorTable

PACKED = "pack-quantized"
SUFFIXES = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
INDEX_DTYPES = (torch.int32, torch.int64)


@dataclass(frozen=True)
class Scheme:
    """Quantisation of some modules. kind: int or float. block: outputs and inputs that share a scale, 0 for all."""

    targets: tuple[str, ...]
    format: str
    kind: str
    bits: int
    is_symmetric: bool
    block: tuple[int, int]
    requires_indices: bool = False  # of the group of each input


def compressed_layer(tensors: TensorTable, module: str, scheme: Scheme) -> Layer:
    """Return the matrix of a module, after checking the headers of its tensors. Raises WeightsError."""
    shape = _shape(tensors, module, scheme)
    block = scheme.block[0] or shape[0], scheme.block[1] or shape[1]
    scales = require_grid(tensors, f"{module}.weight_scale", shape, block)
    if scheme.kind == "float":

        def open_floats() -> CodedMatrix:
            return fp8_matrix(tensors, f"{module}.weight", f"{module}.weight_scale", block)

        return Layer(shape, open_floats)
    zeros = tensors.find(zero_name := f"{module}.weight_zero_point")
    if zeros is not None and zeros.dtype == torch.int32 and scheme.format == PACKED and block[0] == 1:
        packed_shape = (-(-shape[0] * scheme.bits // 32), -(-shape[1] // block[1]))
        require(tensors, zero_name, (torch.int32,), packed_shape)
    elif zeros is not None or not scheme.is_symmetric:
        require(tensors, zero_name, (torch.int8,), scales.shape)
    if tensors.find(indices := f"{module}.weight_g_idx") is not None or scheme.requires_indices:
        require(tensors, indices, INDEX_DTYPES, (shape[1],))
    return Layer(shape, _Integers(tensors, module, scheme, shape, block).open)


def _shape(tensors: TensorTable, module: str, scheme: Scheme) -> tuple[int, int]:
    """Return the shape of a matrix, after checking the tensor of its codes."""
    if scheme.format != PACKED:
        dtype = torch.int8 if scheme.kind == "int" else FLOAT8
        outputs, inputs = require_matrix(tensors, f"{module}.weight", (dtype,)).shape
        return outputs, inputs
    entry = require_matrix(tensors, name := f"{module}.weight_packed", (torch.int32,))
    require(tensors, shape_name := f"{module}.weight_shape", INDEX_DTYPES, (2,))
    outputs, inputs = tensors.peek(shape_name).tolist()
    if inputs < 1 or (outputs, -(-inputs * scheme.bits // 32)) != entry.shape:
        raise WeightsError(
            f"{entry.file}: tensor {name} has shape {entry.shape}, which does not fit {outputs} x {inputs} codes of "
            f"{scheme.bits} bits, as {shape_name} says: the checkpoint is damaged; fetch it again"
        )
    return outputs, inputs


@dataclass(frozen=True)
class _Integers:
    """Integer codes of a module. block: outputs and inputs that share a scale."""

    tensors: TensorTable
    module: str
    scheme: Scheme
    shape: tuple[int, int]
    block: tuple[int, int]

    def open(self) -> CodedMatrix | DenseMatrix:
        """Read scales, zero points and groups."""
        bits, inputs = self.scheme.bits, self.shape[1]
        zeros = self._read_zeros(f"{self.module}.weight_zero_point")
        scales = self._spread(read_scales(self.tensors, f"{self.module}.weight_scale", largest=1 << bits))
        group = 0 if self.block[1] >= inputs else self.block[1]
        indices = read_group_indices(self.tensors, f"{self.module}.weight_g_idx", inputs, group)
        codes = self._packed_codes() if self.scheme.format == PACKED else self._byte_codes()
        if indices is None:
            return coded_matrix(self.scheme.format, bits, group, self.shape, scales, zeros, codes)
        offsets = torch.full(scales.shape, 1 << (bits - 1), dtype=torch.uint8) if zeros is None else zeros
        return permuted(codes, scales, offsets, indices, self.shape)

    def _read_zeros(self, name: str) -> Tensor | None:
        """Return the zero points, uint8 [N, G]; None for the middle of the codes."""
        if (entry := self.tensors.find(name)) is None:
            return None
        stored = self.tensors.read(name)
        if stored.dtype == torch.int32:
            return unpack_words(stored.T, self.scheme.bits)[:, : self.shape[0]].T
        return self._spread(_unsigned(entry.file, name, stored, self.scheme.bits))

    def _spread(self, grid: Tensor) -> Tensor:
        """Return numbers of blocks as those of each row and group: [N, G]."""
        rows = grid.reshape(-(-self.shape[0] // self.block[0]), -1)
        return rows.repeat_interleave(self.block[0], 0)[: self.shape[0]]

    def _packed_codes(self) -> Callable[[int, int], Tensor]:
        self.tensors.read(f"{self.module}.weight_shape")
        read, bits, inputs = self._row_reader("weight_packed"), self.scheme.bits, self.shape[1]
        return lambda first, last: unpack_words(read(first, last), bits)[:, :inputs]

    def _byte_codes(self) -> Callable[[int, int], Tensor]:
        file, read, bits = (
            self.tensors.require(f"{self.module}.weight").file,
            self._row_reader("weight"),
            self.scheme.bits,
        )
        return lambda first, last: _unsigned(file, f"{self.module}.weight", read(first, last), bits)

    def _row_reader(self, suffix: str) -> Callable[[int, int], Tensor]:
        """Return a function that reads rows of a tensor, which is taken from the table."""
        entry = self.tensors.take(f"{self.module}.{suffix}")

        def read(first: int, last: int) -> Tensor:
            rows = torch.empty((last - first, entry.shape[1]), dtype=entry.dtype)
            entry.rows(first, last).read_into(rows)
            self.tensors.count(rows.nbytes)
            return rows

        return read


def _unsigned(file: Path, name: str, signed: Tensor, bits: int) -> Tensor:
    """Return signed codes in int8 with half of their range added. Raises WeightsError for those of more bits."""
    unsigned = signed.view(torch.uint8) ^ 0x80
    if bits == 8:
        return unsigned
    most = 1 << (bits - 1)
    if bool((signed < -most).any()) or bool((signed >= most).any()):
        raise WeightsError(
            f"{file}: tensor {name} has values from {signed.min()} to {signed.max()}, but must have those from {-most} "
            f"to {most - 1}: the checkpoint is damaged; fetch it again"
        )
    return unsigned - (128 - most)
