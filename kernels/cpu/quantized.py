"""Quantised linear layers, packed for the local processor without rounding; see source/quantized.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.cpu import structs
from kernels.cpu.library import load
from kernels.cpu.structs import PANEL, address
from kernels.huge_pages import Arena
from kernels.quantization import QuantizedMatrix, QuantScheme, join_equal_schemes, row_ranges

BLOCK = 32  # inputs that share a scale of the rows (source/block.h)
HALF = BLOCK // 2
STORED_BITS = (4, 5, 6, 8)
TABLE_SIZE = 16
TABLE_SHIFT = 128  # makes the values of a table unsigned


def can_pack(matrix: QuantizedMatrix) -> bool:
    """Return whether the kernels compute with a matrix as it is stored.

    Groups must be halves or whole blocks; with integer scales, a half or one block. Minimums exclude halves, offsets
    and zero points. Tables must have 4-bit codes of 8-bit values, and no zero points.
    """
    scheme = matrix.scheme
    group = _group(matrix)
    has_blocks = (group == HALF or group % BLOCK == 0) and not scheme.is_float8
    if scheme.has_minimums:
        has_blocks = group % BLOCK == 0 and not scheme.offset and not scheme.table and not scheme.has_zeros
    shared_fits = not scheme.shared or (scheme.shared % group == 0 and group <= BLOCK)
    is_byte_table = bool(scheme.table) and min(scheme.table) >= -TABLE_SHIFT and max(scheme.table) < TABLE_SHIFT
    table_fits = not scheme.table or (scheme.bits == 4 and is_byte_table and not scheme.has_zeros)
    return has_blocks and shared_fits and table_fits and scheme.scale_dtype in (torch.float16, torch.float32)


def packable(parts: Sequence[Tensor | QuantizedMatrix]) -> list[QuantizedMatrix] | None:
    """Return parts of a layer as matrices for `packed_segments`; None if the kernels cannot compute with them."""
    stored = [part for part in parts if not isinstance(part, Tensor)]
    if len(stored) < len(parts) or not all(map(can_pack, stored)):
        return None
    matrices = join_equal_schemes(stored)
    return None if any(matrix.shape[0] % PANEL for matrix in matrices[:-1]) else matrices


def packed_segments(
    matrices: Sequence[QuantizedMatrix], arena: Arena
) -> tuple[ctypes.Array[structs.QuantSegment], list[Tensor]]:
    """Pack matrices that are stacked by outputs. All but the last have whole panels of outputs.

    Returns their descriptions and the memory that these refer to.
    """
    segments = (structs.QuantSegment * len(matrices))()
    memory: list[Tensor] = []
    end = 0
    for segment, matrix in zip(segments, matrices, strict=True):
        outputs = matrix.shape[0]
        end += -(-outputs // PANEL)
        _describe(segment, matrix, end)
        memory.append(_pack(segment, matrix, arena))
    return segments, memory


def _pack(segment: structs.QuantSegment, matrix: QuantizedMatrix, arena: Arena) -> Tensor:
    """Pack one matrix some rows at a time, and set the segment's address to the result, which is returned."""
    library = load()
    outputs, inputs = matrix.shape
    packed = arena.allocate((library.carousel_quantized_bytes(segment, outputs, inputs),), torch.uint8)
    segment.packed = address(packed)
    for first, last in row_ranges(matrix.shape, PANEL):
        planes = {name: plane.contiguous() for name, plane in matrix.rows(first, last).planes().items()}
        begin = packed[library.carousel_quantized_bytes(segment, first, inputs) :]
        addresses = structs.Planes(**{name: address(plane) for name, plane in planes.items()})
        library.carousel_pack_quantized(segment, addresses, last - first, inputs, address(begin))
    return packed


def _describe(segment: structs.QuantSegment, matrix: QuantizedMatrix, end: int) -> None:
    scheme = matrix.scheme
    assert can_pack(matrix), scheme
    segment.end = end
    segment.bits = _stored_bits(scheme)
    segment.offset = scheme.offset + (TABLE_SHIFT if scheme.table else 0)
    segment.group = _group(matrix)
    segment.shared = scheme.shared or segment.group
    segment.is_float16 = scheme.scale_dtype == torch.float16
    segment.has_minimums = scheme.has_minimums
    segment.has_integer_scales = scheme.shared > 0
    segment.has_zeros = scheme.has_zeros
    segment.has_table = bool(scheme.table)
    table = [value + TABLE_SHIFT for value in scheme.table]
    segment.table[:] = bytes(table + [0] * (TABLE_SIZE - len(table)))


def _stored_bits(scheme: QuantScheme) -> int:
    """Return the bits of a packed code. Those of 5 and 6 bits have a minimum, or half of their range as offset."""
    bits = next(bits for bits in STORED_BITS if bits >= scheme.bits)
    is_centred = scheme.offset == 1 << (bits - 1) and not scheme.has_zeros
    return bits if bits in (4, 8) or scheme.has_minimums or is_centred else 8


def _group(matrix: QuantizedMatrix) -> int:
    """Return the inputs of a group; a group of a whole row ends with its last block."""
    return matrix.scheme.group or -(-matrix.shape[1] // BLOCK) * BLOCK
