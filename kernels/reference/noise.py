"""Counter-based Gumbel noise: a function of (seed, position, choice, column), without state to save or restore.

The mixing function is lowbias32 (Chris Wellons, hash-prospector, 2018), a bijection of 32-bit words found by search
for low avalanche bias. A row's key is two 32-bit words, each the function chained over the row's inputs from its own
start value; a column is mixed with one, then with the other. With a single word, two rows with keys that differ only in
low bits would share noise.

All arithmetic is on integers modulo 2^32, so other back ends can match it bit for bit. Here it uses int64 with a mask;
`truncated_uniform` uses int32, which is faster when all columns are needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD_MASK = 0xFFFFFFFF
MULTIPLIER_1 = 0x7FEB352D
MULTIPLIER_2 = 0x846CA68B
KEY_START_A = 0x9E3779B9  # 2^32 / golden ratio
KEY_START_B = 0x85EBCA6B  # from MurmurHash3's finaliser; any other word would do
MAX_BELOW_ONE = 1.0 - 2.0**-24
MAX_NOISE = 23.0  # above -log(-log1p(-2^-33)) = 22.874, the noise of hash 0


def mix(word: Tensor) -> Tensor:
    """Apply lowbias32 to int64 values in [0, 2^32), in place."""
    word ^= word >> 16
    word *= MULTIPLIER_1
    word &= WORD_MASK
    word ^= word >> 15
    # The same multiplier modulo 2^32, but small enough in magnitude that the product fits in 63 bits.
    word *= MULTIPLIER_2 - (1 << 32)
    word &= WORD_MASK
    word ^= word >> 16
    return word


def row_keys(seed: Tensor, position: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two key words of each row: seed[R], position[R], choice[R] int64 -> two int64 tensors [R].

    All 64 bits of the seed are used, and the low 32 bits of the others.
    """
    keys = torch.tensor([[KEY_START_A], [KEY_START_B]], device=seed.device)
    for word in (seed & WORD_MASK, (seed >> 32) & WORD_MASK, position & WORD_MASK, choice & WORD_MASK):
        keys = mix(keys ^ word)
    return keys[0], keys[1]


def column_hash(columns: Tensor, key_a: Tensor, key_b: Tensor) -> Tensor:
    """Hash columns with row keys: columns, key_a, key_b int64, broadcast together -> int64 in [0, 2^32)."""
    word = mix((columns + key_a) & WORD_MASK)
    word ^= key_b
    return mix(word)


def truncated_uniform(columns: int, key_a: Tensor, key_b: Tensor) -> Tensor:
    """Return a lower bound of each column's uniform number, truncated to 24 bits: keys [R] -> [R, columns] float32."""
    key_a, key_b = (
        torch.where(key > WORD_MASK >> 1, key - WORD_MASK - 1, key).to(torch.int32) for key in (key_a, key_b)
    )
    word = torch.arange(columns, dtype=torch.int32, device=key_a.device) + key_a.unsqueeze(1)
    word = _mix_int32(_mix_int32(word).bitwise_xor_(key_b.unsqueeze(1)))
    return ((word >> 8) & 0xFFFFFF).to(torch.float32).mul_(2.0**-24)


def _mix_int32(word: Tensor) -> Tensor:
    """Apply `mix` to words held as int32, in place. Products wrap; the masks undo the sign extension of shifts."""
    word ^= (word >> 16) & 0xFFFF
    word *= MULTIPLIER_1
    word ^= (word >> 15) & 0x1FFFF
    word *= MULTIPLIER_2 - (1 << 32)
    word ^= (word >> 16) & 0xFFFF
    return word


def gumbel(hashes: Tensor) -> Tensor:
    """Return standard Gumbel noise in float32 for int64 hashes in [0, 2^32).

    With u = (hash + 0.5) / 2^32 uniform in (0, 1), -log1p(-u) is an exponential variable. Its smallest values give the
    largest noise and come from the smallest u, where float32 is finest. The usual -log(-log(u)) takes large noise from
    u near 1, where neighbours are 2^-24 apart: it ends at 16.6 and is coarse below, which distorts rare tokens.
    """
    return gumbel_of(hashes.to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=MAX_BELOW_ONE))


def gumbel_of(uniform: Tensor) -> Tensor:
    """Return -log(-log1p(-u)) for float32 u in [0, 1), in place. 0 gives infinity."""
    return uniform.neg_().log1p_().neg_().log_().neg_()
