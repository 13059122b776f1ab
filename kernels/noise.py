"""Counter-based Gumbel noise inside a kernel; `kernels.reference.noise` says what it is and why.

The hashes are equal to the reference's bit for bit; the noise made of them may differ in the last places of its
logarithms.
"""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

from kernels.reference import noise

MULTIPLIER_1 = tl.constexpr(noise.MULTIPLIER_1)
MULTIPLIER_2 = tl.constexpr(noise.MULTIPLIER_2)
KEY_START_A = tl.constexpr(noise.KEY_START_A)
KEY_START_B = tl.constexpr(noise.KEY_START_B)
LARGEST_BELOW_ONE = tl.constexpr(noise.LARGEST_BELOW_ONE)
WORD = tl.constexpr(noise.WORD)


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
def gumbel(hashes):
    """uint32 -> standard Gumbel noise, float32."""
    u = tl.minimum((hashes.to(tl.float32) + 0.5) * (1.0 / 4294967296.0), LARGEST_BELOW_ONE)
    # log1p(-u) from log alone (Kahan): the rounding of 1 - u is divided out again. Below 2^-25 it is -u.
    rest = 1.0 - u
    taken = tl.where(rest == 1.0, 1.0, 1.0 - rest)
    exponential = tl.where(rest == 1.0, u, -tl.log(rest) * (u / taken))
    return -tl.log(exponential)
