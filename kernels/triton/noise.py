"""Counter-based Gumbel noise inside a kernel; see `kernels.reference.noise` for definition and rationale.

The hashes equal the reference's bit for bit. The noise may differ from it by 2e-6 plus two parts in a million, and a
token's probability is off by as much. A sampled row spends most of its time here, and two exact logarithms with a
division in between would take four times the instructions of `gumbel`.
"""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import math

import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernels.reference import noise

MULTIPLIER_1 = tl.constexpr(noise.MULTIPLIER_1)
MULTIPLIER_2 = tl.constexpr(noise.MULTIPLIER_2)
KEY_START_A = tl.constexpr(noise.KEY_START_A)
KEY_START_B = tl.constexpr(noise.KEY_START_B)
MAX_BELOW_ONE = tl.constexpr(noise.MAX_BELOW_ONE)
WORD_MASK = tl.constexpr(noise.WORD_MASK)
LN2 = tl.constexpr(math.log(2.0))
SMALL = tl.constexpr(0.125)  # a series is used below this, a logarithm from here on
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def mix(word):
    """Apply lowbias32 to uint32 values."""
    word ^= word >> 16
    word *= MULTIPLIER_1
    word ^= word >> 15
    word *= MULTIPLIER_2
    return word ^ (word >> 16)


@triton.jit
def row_key(start, seed, position, choice):
    """Return the uint32 key of a row: start uint32; seed, position, choice int64."""
    key = mix(start ^ (seed & WORD_MASK).to(tl.uint32))
    key = mix(key ^ ((seed >> 32) & WORD_MASK).to(tl.uint32))
    key = mix(key ^ (position & WORD_MASK).to(tl.uint32))
    return mix(key ^ (choice & WORD_MASK).to(tl.uint32))


@triton.jit
def column_hash(columns, key_a, key_b):
    """Hash int32 columns with uint32 row keys -> uint32."""
    return mix(mix(columns.to(tl.uint32) + key_a) ^ key_b)


@triton.jit
def log2(values):
    """Return the approximate base-2 logarithm of normal positive float32 values, by the device's instruction.

    The error is 2^-22, absolute between 0.5 and 2 and relative elsewhere (lg2.approx, PTX ISA).
    """
    if INTERPRETED:
        return tl.log2(values)
    return libdevice.fast_log2f(values)


@triton.jit
def gumbel(hashes):
    """Return standard Gumbel noise -log(-log1p(-u)) in float32 for uint32 hashes.

    For small u, log1p(-u) is -u - u^2/2 - u^3/3 ...; the terms after u^6 are at most 6e-7 of it. For larger u,
    log(1 - u) is far enough from zero that the rounding of 1 - u and the instruction's error are 1.6e-6 of it.
    """
    u = tl.minimum((hashes.to(tl.float32) + 0.5) * (1.0 / 4294967296.0), MAX_BELOW_ONE)
    series = u * (1.0 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6))))))
    exponential = tl.where(u < SMALL, series, log2(1.0 - u) * -LN2)
    return log2(exponential) * -LN2
