"""Counter-based Gumbel noise inside a kernel; `kernels.reference.noise` says what it is and why.

The hashes are equal to the reference's bit for bit; the noise made of them may differ from it by 2e-6 and two parts in
a million, which makes a token's probability wrong by as much. A sampled row takes most of its time here, and two exact
logarithms with a division between them are four times the instructions of `gumbel`.
"""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
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
LARGEST_BELOW_ONE = tl.constexpr(noise.LARGEST_BELOW_ONE)
WORD = tl.constexpr(noise.WORD)
LN2 = tl.constexpr(math.log(2.0))
SMALL = tl.constexpr(0.125)  # below it a series is used, from it on a logarithm
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def mix(word):
    """lowbias32 of uint32 values."""
    word ^= word >> 16
    word *= MULTIPLIER_1
    word ^= word >> 15
    word *= MULTIPLIER_2
    return word ^ (word >> 16)


@triton.jit
def row_key(start, seed, position, choice):
    """start: uint32; seed, position, choice: int64 -> uint32 key of a row."""
    key = mix(start ^ (seed & WORD).to(tl.uint32))
    key = mix(key ^ ((seed >> 32) & WORD).to(tl.uint32))
    key = mix(key ^ (position & WORD).to(tl.uint32))
    return mix(key ^ (choice & WORD).to(tl.uint32))


@triton.jit
def column_hash(columns, key_a, key_b):
    """columns: int32, keys: uint32 -> uint32."""
    return mix(mix(columns.to(tl.uint32) + key_a) ^ key_b)


@triton.jit
def log2(values):
    """Of normal positive float32, by the device's own instruction: 2^-22 off between a half and two, elsewhere by that
    share of the result (lg2.approx, PTX ISA).
    """
    if INTERPRETED:
        return tl.log2(values)
    return libdevice.fast_log2f(values)


@triton.jit
def gumbel(hashes):
    """uint32 -> standard Gumbel noise, float32: -log(-log1p(-u)).

    log1p(-u) is -u - u^2/2 - u^3/3 ... while u is small; what follows u^6 is 6e-7 of it at most. After that log(1 - u)
    is far enough from zero for the rounding of 1 - u and the instruction's error to be 1.6e-6 of it.
    """
    u = tl.minimum((hashes.to(tl.float32) + 0.5) * (1.0 / 4294967296.0), LARGEST_BELOW_ONE)
    series = u * (1.0 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6))))))
    exponential = tl.where(u < SMALL, series, log2(1.0 - u) * -LN2)
    return log2(exponential) * -LN2
