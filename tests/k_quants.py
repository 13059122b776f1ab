"""Blocks of Q4_K and Q6_K, which package gguf reads but cannot write."""

from __future__ import annotations

import numpy as np

SUPER_BLOCK = 256  # inputs


def quantize_q4_k(rows: np.ndarray) -> np.ndarray:
    """Return rows [N, K] float32 as uint8 [N, bytes]: 8 groups of 32 codes with 6-bit scales and minimums."""
    x = rows.reshape(-1, 8, 32)
    lowest = np.minimum(x.min(-1), 0)
    scales, minimums = (x.max(-1) - lowest) / 15, -lowest
    shared = _float16(scales.max(-1) / 63), _float16(minimums.max(-1) / 63)
    scale_codes, minimum_codes = _rounded(scales, shared[0], 63), _rounded(minimums, shared[1], 63)
    step = shared[0][:, None] * scale_codes
    codes = _rounded(x + (shared[1][:, None] * minimum_codes)[..., None], step[..., None], 15)
    upper = (scale_codes[:, 4:] >> 4 << 6, minimum_codes[:, 4:] >> 4 << 6)
    packed = (
        scale_codes[:, :4] | upper[0],
        minimum_codes[:, :4] | upper[1],
        (scale_codes[:, 4:] & 15) | (minimum_codes[:, 4:] & 15) << 4,
    )
    pairs = codes.reshape(-1, 4, 2, 32)
    nibbles = pairs[:, :, 0] | pairs[:, :, 1] << 4
    return _joined(len(rows), *map(_bytes, shared), *packed, nibbles)


def quantize_q6_k(rows: np.ndarray) -> np.ndarray:
    """Return rows [N, K] float32 as uint8 [N, bytes]: 16 groups of 16 codes with 8-bit scales."""
    x = rows.reshape(-1, 16, 16)
    scales = np.abs(x).max(-1) / 31
    shared = _float16(scales.max(-1) / 127)
    scale_codes = _rounded(scales, shared, 127)
    steps = (shared[:, None] * scale_codes)[..., None]
    codes = (np.clip(np.rint(np.divide(x, steps, out=np.zeros_like(x), where=steps != 0)), -32, 31) + 32).astype(
        np.uint8
    )
    lower, upper = codes.reshape(-1, 2, 2, 64) & 15, codes.reshape(-1, 2, 4, 32) >> 4
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    planes = np.bitwise_or.reduce(upper << shifts, axis=2)
    return _joined(len(rows), lower[:, :, 0] | lower[:, :, 1] << 4, planes, scale_codes, _bytes(shared))


def _rounded(values: np.ndarray, steps: np.ndarray, most: int) -> np.ndarray:
    """Return values / steps as integers up to `most`; 0 for steps of 0."""
    steps = steps if steps.ndim == values.ndim else steps[:, None]
    steps = np.broadcast_to(steps, values.shape)
    found = np.divide(values, steps, out=np.zeros_like(values), where=steps != 0)
    return np.clip(np.rint(found), 0, most).astype(np.uint8)


def _float16(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


def _bytes(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).reshape(-1, 1).view(np.uint8)


def _joined(rows: int, *parts: np.ndarray) -> np.ndarray:
    """Return the parts of each block one after another, the blocks of a row in one line."""
    blocks = np.concatenate([part.reshape(len(parts[0]), -1) for part in parts], 1)
    return np.ascontiguousarray(blocks.astype(np.uint8).reshape(rows, -1))
