"""Gumbel noise that is a function of (seed, position, choice, column): counter-based, so there is no state to save or
restore.

The mixing function is lowbias32 (Chris Wellons, hash-prospector, 2018), a bijection of 32-bit words found by search
for low avalanche bias. A row's key is two 32-bit words, each the function chained over the row's inputs from its own
start; a column is mixed with one, then with the other. With a single word two rows whose keys differ in low bits only
would share noise.

Everything is integer arithmetic modulo 2^32, done here in int64 under a mask, so other back ends can agree bit for bit;
`least_uniform` does it in int32, for speed where all columns are needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
MULTIPLIER_1 = 0x7FEB352D
MULTIPLIER_2 = 0x846CA68B
KEY_START_A = 0x9E3779B9  # 2^32 / golden ratio
KEY_START_B = 0x85EBCA6B  # from the finaliser of MurmurHash3; any other word would do
LARGEST_BELOW_ONE = 1.0 - 2.0**-24
LARGEST_NOISE = 23.0  # above -log(-log1p(-2^-33)) = 22.874, the noise of hash 0


def mix(word: Tensor) -> Tensor:
    """lowbias32 of int64 values in [0, 2^32); consumes `word`."""
    word ^= word >> 16
    word *= MULTIPLIER_1
    word &= WORD
    word ^= word >> 15
    # The same multiplier modulo 2^32, but small enough in magnitude that the product fits in 63 bits.
    word *= MULTIPLIER_2 - (1 << 32)
    word &= WORD
    word ^= word >> 16
    return word


def row_keys(seed: Tensor, position: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
    """seed[R], position[R], choice[R] int64 -> two int64 words [R]. Both halves of the seed count; of the others the
    low half.
    """
    keys = torch.tensor([[KEY_START_A], [KEY_START_B]], device=seed.device)
    for word in (seed & WORD, (seed >> 32) & WORD, position & WORD, choice & WORD):
        keys = mix(keys ^ word)
    return keys[0], keys[1]


def column_hash(columns: Tensor, key_a: Tensor, key_b: Tensor) -> Tensor:
    """columns, key_a, key_b int64, broadcast against each other -> int64 hashes in [0, 2^32)."""
    word = mix((columns + key_a) & WORD)
    word ^= key_b
    return mix(word)


def least_uniform(columns: int, key_a: Tensor, key_b: Tensor) -> Tensor:
    """key_a[R], key_b[R] -> [R, columns] float32: the uniform number of each column's hash, cut off at 24 bits."""
    key_a, key_b = (torch.where(key > WORD >> 1, key - WORD - 1, key).to(torch.int32) for key in (key_a, key_b))
    word = torch.arange(columns, dtype=torch.int32, device=key_a.device) + key_a.unsqueeze(1)
    word = _mix_int32(_mix_int32(word).bitwise_xor_(key_b.unsqueeze(1)))
    return ((word >> 8) & 0xFFFFFF).to(torch.float32).mul_(2.0**-24)


def _mix_int32(word: Tensor) -> Tensor:
    """`mix` of words held as int32, whose products wrap and whose shifts drag the sign along; consumes `word`."""
    word ^= (word >> 16) & 0xFFFF
    word *= MULTIPLIER_1
    word ^= (word >> 15) & 0x1FFFF
    word *= MULTIPLIER_2 - (1 << 32)
    word ^= (word >> 16) & 0xFFFF
    return word


def gumbel(hashes: Tensor) -> Tensor:
    """Hashes, int64 in [0, 2^32) -> standard Gumbel noise, float32.

    With u = (hash + 0.5) / 2^32 uniform in (0, 1), -log1p(-u) is an exponential variable whose smallest values, which
    make the largest noise, come from the smallest u, where a float32 is finest. The usual -log(-log(u)) makes large
    noise from u near 1, where neighbours are 2^-24 apart: its noise ends at 16.6 and is coarse before that, which
    distorts rare tokens.
    """
    return gumbel_of(hashes.to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=LARGEST_BELOW_ONE))


def gumbel_of(uniform: Tensor) -> Tensor:
    """Numbers in [0, 1), float32 -> -log(-log1p(-u)); consumes `uniform`. 0 gives infinity."""
    return uniform.neg_().log1p_().neg_().log_().neg_()
