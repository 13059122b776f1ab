"""Types of PTX as numpy dtypes, and bfloat16, which numpy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

TYPES = {
    name: np.dtype(numpy_name)
    for name, numpy_name in {
        "pred": "?", "b8": "u1", "b16": "u2", "u16": "u2", "s16": "i2", "bf16": "u2", "f16": "f2", "b32": "u4",
        "u32": "u4", "s32": "i4", "f32": "f4", "bf16x2": "u4", "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8",
    }.items()
}  # fmt: skip
WORDS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)} | {16: np.dtype("V16")}  # by size in bytes
REGISTERS = {"p": np.dtype("?"), "rs": np.dtype("u2"), "r": np.dtype("u4"), "rd": np.dtype("u8")}  # %rs1 has 16 bits


def bf16_to_float32(words: Array) -> Array:
    """Convert bfloat16 as uint16 to float32, exactly."""
    return (words.astype(np.uint32) << 16).view(np.float32)


def float32_to_bf16(numbers: Array) -> Array:
    """Round float32 to the nearest bfloat16 as uint16, ties to even; NaN becomes 0x7fff."""
    bits = numbers.view(np.uint32)
    nearest = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(numbers), np.uint16(0x7FFF), nearest)


def columns(rows: Array) -> Array:
    """Transpose rows[n, m] -> [m, n], contiguous."""
    return np.ascontiguousarray(rows.T)
