"""Tiles of quantised weights: codes and scales are loaded, and weights computed in registers.

Weights equal those of `kernels.quantization.StoredMatrix.dequantize` bit for bit: a product in float32, a difference in
float32, one rounding to the dtype of the activations. A compiler may fuse the product and the difference, which changes
no bit: `kernels.triton.packed_matrix.can_pack` allows minimums only if the products are exact.

Except loads, only operations on single elements, views and joins appear here. Triton then computes the operand of a
product in the registers in which the tensor core reads it, without a way through shared memory.
"""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import triton
import triton.language as tl

# The bits of 2^23, or'ed with an integer below 2^23, are the float 2^23 plus the integer.
FLOAT_BITS = tl.constexpr(0x4B000000)
FLOAT_BASE = tl.constexpr(float(1 << 23))
FLOAT8_SCALE = tl.constexpr(2.0**120)  # ratio of equal exponent fields in float8_e4m3fn and float32
FLOAT8_NAN = tl.constexpr(0x7F)


@triton.jit
def load_weights(
    codes,  # [N, LAYOUT.code_bytes] uint8
    high_bits,  # [N, LAYOUT.high_bytes] uint8, or None
    scales,  # [N, LAYOUT.scale_columns] float16, float32, or int32 for pairs of float16
    factors,  # [N, LAYOUT.group_columns] int8, or int16 for pairs of bytes; or None
    zeros,  # [N, LAYOUT.group_columns] float32, or None
    rows,  # [BLOCK_N] int64
    row_inside,  # [BLOCK_N] bool
    start,  # first input, a multiple of PARTS * BLOCK_K
    LAYOUT: tl.constexpr,  # kernels.triton.packed_matrix.Layout
    PARTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # inputs of each part, a power of two of at least 16
    DTYPE: tl.constexpr,
):
    """Return the weights of some rows for inputs from `start` on: [PARTS, BLOCK_N, BLOCK_K] in DTYPE.

    Weights outside the matrix are finite.
    """
    PER_BYTE: tl.constexpr = LAYOUT.codes_per_byte
    ROW: tl.constexpr = LAYOUT.code_bytes
    number = _load_bytes(codes, rows, row_inside, start, ROW, PER_BYTE, PARTS, BLOCK_K)
    if PER_BYTE == 2:
        number = tl.interleave(number & 15, number >> 4)
    if high_bits is not None:
        number |= _load_high_bits(high_bits, rows, row_inside, start, LAYOUT, PARTS, BLOCK_K) << 4
    scale, second = _load_scales(scales, factors, rows, row_inside, start, LAYOUT, PARTS, BLOCK_N, BLOCK_K)
    if LAYOUT.is_float8:
        values = _float8(number)
    else:
        OFFSET: tl.constexpr = LAYOUT.offset
        if LAYOUT.has_table:
            number = _look_up(number, LAYOUT.table_low, LAYOUT.table_high)
        values = (number | FLOAT_BITS).to(tl.float32, bitcast=True)
        if zeros is not None:
            COLUMNS: tl.constexpr = LAYOUT.group_columns
            second = _load_groups(zeros, rows, row_inside, start, COLUMNS, LAYOUT.group, PARTS, BLOCK_K)
        if LAYOUT.has_zeros:
            values -= _spread(second + FLOAT_BASE, PARTS, BLOCK_N, BLOCK_K)
        else:
            values -= FLOAT_BASE + OFFSET
    values *= _spread(scale, PARTS, BLOCK_N, BLOCK_K)
    if LAYOUT.has_minimums:
        values -= _spread(second, PARTS, BLOCK_N, BLOCK_K)
    return values.to(DTYPE)


@triton.jit
def _load_bytes(
    plane,  # [N, ROW] uint8
    rows,
    row_inside,
    start,
    ROW: tl.constexpr,
    PER_BYTE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return the bytes of inputs from `start` on: [PARTS, BLOCK_N, BLOCK_K / PER_BYTE] int32."""
    COUNT: tl.constexpr = BLOCK_K // PER_BYTE
    first = tl.multiple_of(start // PER_BYTE, PARTS * COUNT)
    inner = first + tl.arange(0, PARTS)[:, None] * COUNT + tl.arange(0, COUNT)[None, :]
    mask = row_inside[None, :, None] & (inner < ROW)[:, None, :]
    return tl.load(plane + rows[None, :, None] * ROW + inner[:, None, :], mask=mask, other=0).to(tl.int32)


@triton.jit
def _load_high_bits(
    plane,  # [N, LAYOUT.high_bytes] uint8
    rows,
    row_inside,
    start,
    LAYOUT: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return the upper bits of codes, 1 or 2 of each: [PARTS, BLOCK_N, BLOCK_K] int32."""
    BITS: tl.constexpr = LAYOUT.high_bits
    ROW: tl.constexpr = LAYOUT.high_bytes
    fields = _load_bytes(plane, rows, row_inside, start, ROW, 8 // BITS, PARTS, BLOCK_K)
    fields = tl.interleave(fields & 15, fields >> 4)
    fields = tl.interleave(fields & 3, fields >> 2)
    if BITS == 1:
        fields = tl.interleave(fields & 1, fields >> 1)
    return fields


@triton.jit
def _float8(codes):
    """Return codes of float8_e4m3fn, int32, as float32: sign, exponent and mantissa move to their places."""
    magnitude = codes & 0x7F
    bits = ((codes & 0x80) << 24) | (magnitude << 20)
    values = bits.to(tl.float32, bitcast=True) * FLOAT8_SCALE
    return tl.where(magnitude == FLOAT8_NAN, float("nan"), values)


@triton.jit
def _look_up(codes, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Return entries of a table of 16 bytes, which are the bytes of two int64, as int32."""
    half = tl.where(codes < 8, tl.cast(LOW, tl.int64), tl.cast(HIGH, tl.int64))
    return (half >> ((codes & 7) * 8).to(tl.int64)).to(tl.int32) & 0xFF


@triton.jit
def _load_scales(
    scales,
    factors,
    rows,
    row_inside,
    start,
    LAYOUT: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return the scales of a tile's groups, and their minimums or zeros (0: none): [PARTS, BLOCK_N, count] float32."""
    SHARED_COLUMNS: tl.constexpr = LAYOUT.scale_columns
    found = _load_groups(scales, rows, row_inside, start, SHARED_COLUMNS, LAYOUT.shared, PARTS, BLOCK_K)
    if scales.dtype.element_ty == tl.int32:
        second = (found >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        scale = found.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        second = 0.0
        scale = found.to(tl.float32)
    if factors is not None:
        COLUMNS: tl.constexpr = LAYOUT.group_columns
        factor = _load_groups(factors, rows, row_inside, start, COLUMNS, LAYOUT.group, PARTS, BLOCK_K)
        COUNT: tl.constexpr = factor.shape[2]
        scale = _spread(scale, PARTS, BLOCK_N, COUNT) * factor.to(tl.int8).to(tl.float32)
        if LAYOUT.has_minimums:
            upper = (factor.to(tl.int32) >> 8) & 0xFF
            second = _spread(second, PARTS, BLOCK_N, COUNT) * upper.to(tl.float32)
    return scale, second


@triton.jit
def _load_groups(
    plane,  # [N, COLUMNS]
    rows,
    row_inside,
    start,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return the entries of all groups of a tile: [PARTS, BLOCK_N, max(1, BLOCK_K / GROUP)]."""
    if BLOCK_K > GROUP:
        COUNT: tl.constexpr = BLOCK_K // GROUP
        first = tl.multiple_of(start // GROUP, PARTS * COUNT)
        column = first + tl.arange(0, PARTS)[:, None] * COUNT + tl.arange(0, COUNT)[None, :]
    else:
        column = ((start + tl.arange(0, PARTS) * BLOCK_K) // GROUP)[:, None]
    mask = row_inside[None, :, None] & (column < COLUMNS)[:, None, :]
    return tl.load(plane + rows[None, :, None] * COLUMNS + column[:, None, :], mask=mask, other=0)


@triton.jit
def _spread(
    groups,  # [PARTS, BLOCK_N, COUNT]
    PARTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LENGTH: tl.constexpr,
):
    """Repeat each entry for its whole group: [PARTS, BLOCK_N, LENGTH]; a single entry is left to broadcasting."""
    COUNT: tl.constexpr = groups.shape[2]
    spread = groups
    if COUNT > 1 and COUNT < LENGTH:
        wide = tl.broadcast_to(groups[:, :, :, None], [PARTS, BLOCK_N, COUNT, LENGTH // COUNT])
        spread = tl.reshape(wide, [PARTS, BLOCK_N, LENGTH])
    return spread
