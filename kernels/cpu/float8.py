"""Linear layers of weights in float8, packed for the local processor without rounding; see source/float8.h."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.cpu.library import load
from kernels.cpu.structs import PANEL, address
from kernels.huge_pages import Arena
from kernels.quantization import QuantizedMatrix, join_equal_schemes, row_ranges


def float8_matrix(parts: Sequence[Tensor | QuantizedMatrix]) -> QuantizedMatrix | None:
    """Return stacked parts of a layer as one matrix; None if they are not in float8 with groups of one size."""
    stored = [part for part in parts if not isinstance(part, Tensor)]
    if len(stored) < len(parts) or not all(matrix.scheme.is_float8 for matrix in stored):
        return None
    matrices = join_equal_schemes(stored)
    return matrices[0] if len(matrices) == 1 else None


def group_of(matrix: QuantizedMatrix) -> int:
    """Return the inputs that share a scale."""
    return matrix.scheme.group or matrix.shape[1]


def pack_float8(matrix: QuantizedMatrix, arena: Arena) -> Tensor:
    """Pack a matrix some rows at a time."""
    library = load()
    (outputs, inputs), group = matrix.shape, group_of(matrix)
    packed = arena.allocate((library.carousel_float8_words(outputs, inputs, group),), torch.int32)
    for first, last in row_ranges(matrix.shape, PANEL):
        rows = matrix.rows(first, last)
        codes, scales = rows.codes.contiguous(), rows.scales.float().contiguous()
        begin = packed[library.carousel_float8_words(first, inputs, group) :]
        library.carousel_pack_float8(address(codes), address(scales), last - first, inputs, group, address(begin))
    return packed
