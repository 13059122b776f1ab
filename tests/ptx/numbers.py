"""The types of PTX as numpy's, and bfloat16, which numpy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

TYPES = {
    name: np.dtype(numpy_name)
    for name, numpy_name in {
        "pred": "?", "b8": "u1", "b16": "u2", "u16": "u2", "bf16": "u2", "f16": "f2", "b32": "u4", "u32": "u4",
        "s32": "i4", "f32": "f4", "bf16x2": "u4", "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8",
    }.items()
}  # fmt: skip
WORDS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)} | {16: np.dtype("V16")}  # by bytes
REGISTERS = {"p": np.dtype("?"), "rs": np.dtype("u2"), "r": np.dtype("u4"), "rd": np.dtype("u8")}  # %rs1 has 16 bits


def widened(words: Array) -> Array:
    """bfloat16 as uint16 -> the same numbers as float32."""
    return (words.astype(np.uint32) << 16).view(np.float32)


def narrowed(numbers: Array) -> Array:
    """float32 -> the nearest bfloat16 as uint16, of two equally near ones the even one; NaN is 0x7fff."""
    bits = numbers.view(np.uint32)
    nearest = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(numbers), np.uint16(0x7FFF), nearest)


def columns(rows: Array) -> Array:
    """rows[n, m] -> [m, n], each of them in one piece."""
    return np.ascontiguousarray(rows.T)
