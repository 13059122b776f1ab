"""Quantised matrices in the memory of a GPU: the codes and scales of their files, copied some rows at a time.

Codes of 4 bits are two a byte, and upper bits of codes of 5 and 6 bits are a plane of their own: a matrix takes hardly
more memory than its file. Values that a kernel needs together are one number, since it copies at least 4 bytes at a
time. `kernels.triton.load_weights` reads the planes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.quantization import QuantizedMatrix, QuantScheme, StoredMatrix, join_equal_schemes, row_ranges

MIN_GROUP = 16  # inputs; no format has smaller groups
WIDE_GROUP = 128  # inputs, from which on a float16 scale is stored as float32: a kernel reads one at a time
TABLE_SIZE, TABLE_SHIFT = 16, 128  # entries of a table, and what makes them unsigned
MAX_OFFSET = 1 << 16  # far below 2^23, so that codes less offsets are exact
FLOAT16_DIGITS, INT8_DIGITS, FLOAT32_DIGITS = 11, 7, 24  # bits of significands


@dataclass(frozen=True)
class Layout:
    """Layout of a packed matrix, a constant of the kernels that read it.

    bits: stored of a code: 4, 5, 6 or 8. group and shared: inputs that share a group and a float scale; powers of two.
    offset: subtracted from codes after the table; the 16 bytes of that are two int64.
    """

    inputs: int
    bits: int
    group: int
    shared: int
    offset: int = 0
    has_table: bool = False
    table_low: int = 0
    table_high: int = 0
    has_minimums: bool = False
    has_zeros: bool = False
    is_float8: bool = False

    @property
    def codes_per_byte(self) -> int:
        """Return the codes in a byte of the plane `codes`."""
        return 1 if self.bits == 8 else 2

    @property
    def code_bytes(self) -> int:
        """Return the bytes of a row of codes."""
        return -(-self.inputs // self.codes_per_byte)

    @property
    def high_bits(self) -> int:
        """Return the bits of a code that are in the plane `high_bits`."""
        return self.bits - 4 if self.bits < 8 else 0

    @property
    def high_bytes(self) -> int:
        """Return the bytes of a row of upper bits."""
        return -(-self.inputs * self.high_bits // 8)

    @property
    def group_columns(self) -> int:
        """Return the groups of a row."""
        return -(-self.inputs // self.group)

    @property
    def scale_columns(self) -> int:
        """Return the float scales of a row."""
        return -(-self.inputs // self.shared)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """Matrix of N outputs. Its planes [N, ...] are the arguments of `load_weights`; absent ones are None."""

    layout: Layout
    outputs: int
    planes: dict[str, Tensor | None]

    @property
    def shape(self) -> tuple[int, int]:
        """Return (N, K)."""
        return self.outputs, self.layout.inputs

    @property
    def nbytes(self) -> int:
        """Return the bytes of all planes."""
        return sum(plane.nbytes for plane in self.planes.values() if plane is not None)


def can_pack(scheme: QuantScheme) -> bool:
    """Return whether kernels can read a matrix of this scheme as it is stored.

    Groups must be whole rows or powers of two, so that they divide the tiles of kernels. Tables must have 4-bit codes
    of 8-bit values. Under minimums, products of codes and scales must be exact in float32 (see `load_weights`). FP8
    has scales alone.
    """
    sizes = [size for size in (scheme.group, scheme.shared) if size]
    groups_fit = all(size >= MIN_GROUP and size.bit_count() == 1 for size in sizes)
    shared_fits = not scheme.shared or (0 < scheme.group <= scheme.shared and not scheme.has_zeros)
    others = (scheme.shared, scheme.offset, scheme.table, scheme.has_minimums, scheme.has_zeros)
    values_fit = 4 <= scheme.bits <= 8 and 0 <= scheme.offset <= MAX_OFFSET
    if scheme.is_float8:
        values_fit = scheme.bits == 8 and not any(others)
    if scheme.table:
        is_byte_table = min(scheme.table) >= -TABLE_SHIFT and max(scheme.table) < TABLE_SHIFT
        values_fit = scheme.bits == 4 and is_byte_table and len(scheme.table) <= TABLE_SIZE and not scheme.has_zeros
    if scheme.has_minimums:
        digits = FLOAT16_DIGITS + scheme.bits + (INT8_DIGITS if scheme.shared else 0)
        values_fit = values_fit and scheme.scale_dtype == torch.float16 and digits <= FLOAT32_DIGITS
        values_fit = values_fit and not (scheme.offset or scheme.table or scheme.has_zeros)
    dtype_fits = scheme.scale_dtype in (torch.float16, torch.float32)
    return groups_fit and shared_fits and values_fit and dtype_fits


def pack_parts(parts: Sequence[Tensor | QuantizedMatrix], device: torch.device) -> list[PackedMatrix] | None:
    """Pack parts of a layer, those of one scheme as one matrix; None if kernels cannot read all of them."""
    stored = [part for part in parts if not isinstance(part, Tensor)]
    if len(stored) < len(parts) or not all(can_pack(matrix.scheme) for matrix in stored):
        return None
    return [pack(matrix, device) for matrix in join_equal_schemes(stored)]


def pack(matrix: QuantizedMatrix, device: torch.device) -> PackedMatrix:
    """Pack a matrix on a device; the host holds about a million weights at a time."""
    layout, outputs = layout_of(matrix.scheme, matrix.shape[1]), matrix.shape[0]
    planes: dict[str, Tensor | None] = dict.fromkeys(("codes", "high_bits", "scales", "factors", "zeros"))
    for first, last in row_ranges(matrix.shape):
        for name, rows in _packed_rows(matrix.rows(first, last), layout).items():
            plane = planes[name]
            if plane is None:
                plane = planes[name] = torch.empty((outputs, rows.shape[1]), dtype=rows.dtype, device=device)
            plane[first:last] = rows
    return PackedMatrix(layout, outputs, planes)


def layout_of(scheme: QuantScheme, inputs: int) -> Layout:
    """Return the layout of matrices of a scheme; a group of a whole row is as long as the next power of two."""
    assert can_pack(scheme), scheme
    group = scheme.group or max(MIN_GROUP, 1 << (inputs - 1).bit_length())
    table = bytes(value + TABLE_SHIFT for value in scheme.table).ljust(TABLE_SIZE, b"\0")
    low, high = (int.from_bytes(table[at : at + 8], "little", signed=True) for at in (0, 8))
    return Layout(
        inputs=inputs,
        bits=scheme.bits if scheme.bits < 7 else 8,
        group=group,
        shared=scheme.shared or group,
        offset=scheme.offset + (TABLE_SHIFT if scheme.table else 0),
        has_table=bool(scheme.table),
        table_low=low,
        table_high=high,
        has_minimums=scheme.has_minimums,
        has_zeros=scheme.has_zeros,
        is_float8=scheme.is_float8,
    )


def _packed_rows(rows: StoredMatrix, layout: Layout) -> dict[str, Tensor]:
    """Return the planes of some rows."""
    planes = {"codes": rows.codes}
    if layout.codes_per_byte == 2:
        planes["codes"] = _pack_fields(rows.codes & 15, 4)
    if layout.high_bits:
        planes["high_bits"] = _pack_fields(rows.codes >> 4, layout.high_bits)
    return planes | _packed_scales(rows, layout)


def _packed_scales(rows: StoredMatrix, layout: Layout) -> dict[str, Tensor]:
    planes = {"scales": rows.scales}
    second = rows.minimums if rows.zeros is None else rows.zeros
    if second is not None and rows.scales.dtype == torch.float16:
        planes["scales"] = _half_bits(rows.scales) & 0xFFFF | _half_bits(second.half()) << 16
    elif rows.zeros is not None:
        planes["zeros"] = rows.zeros.float()
    elif layout.shared >= WIDE_GROUP:
        planes["scales"] = rows.scales.float()
    if rows.group_scales is not None:
        planes["factors"] = rows.group_scales
        if rows.group_minimums is not None:
            planes["factors"] = rows.group_scales.short() & 0xFF | rows.group_minimums.short() << 8
    return planes


def _half_bits(numbers: Tensor) -> Tensor:
    return numbers.contiguous().view(torch.int16).int()


def _pack_fields(fields: Tensor, bits: int) -> Tensor:
    """Return uint8 [R, C] of `bits` bits in bytes, the first in the lowest bits: [R, ceil(C x bits / 8)]."""
    count = 8 // bits
    padded = torch.nn.functional.pad(fields, (0, -fields.shape[1] % count)).view(len(fields), -1, count)
    packed = padded[..., 0].clone()
    for index in range(1, count):
        packed |= padded[..., index] << bits * index
    return packed
