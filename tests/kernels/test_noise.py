"""The noise is bitwise equal in torch and Triton, uniform, different for different inputs, and exact in its tail."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.interface import Kernels
from kernels.reference import noise

ROWS = [
    (0, 0, 0),
    (1, 0, 0),
    (0, 1, 0),
    (0, 0, 1),
    (-1, 2**31, 7),
    (2**63 - 1, 12345, 3),
    (-(2**63), 1, 0),
    (1 << 32, 0, 0),
]


def hashes(rows: list[tuple[int, int, int]], columns: int) -> torch.Tensor:
    """Return [len(rows), columns] hashes of the reference."""
    seed, position, choice = (torch.tensor(values) for values in zip(*rows, strict=True))
    key_a, key_b = noise.row_keys(seed, position, choice)
    return noise.column_hash(torch.arange(columns), key_a.unsqueeze(1), key_b.unsqueeze(1))


def lowbias32(x: int) -> int:
    """Compute the published function on Python integers."""
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)


def test_mixing_is_lowbias32():
    """int64 arithmetic under a mask equals the published 32-bit function."""
    words = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xDEADBEEF, 0xFFFFFFFF]
    assert noise.mix(torch.tensor(words)).tolist() == [lowbias32(word) for word in words]


def test_the_bulk_hash_is_the_same_hash():
    """The hash computed in int32 for all columns at once has the leading 24 bits of the hash."""
    seed, position, choice = (torch.tensor(values) for values in zip(*ROWS, strict=True))
    bulk = noise.truncated_uniform(3000, *noise.row_keys(seed, position, choice))
    assert torch.equal(bulk, (hashes(ROWS, 3000) >> 8).to(torch.float32) * 2.0**-24)


def test_hashes_are_equal_bit_for_bit_in_triton(triton_kernels: Kernels, device: torch.device):
    """torch and Triton hash alike for seeds of 64 bits and either sign, any position and choice, and every column."""
    from tests.kernels.noise_kernel import hash_columns

    for row in ROWS:
        assert torch.equal(hash_columns(*row, 1000, device).cpu(), hashes([row], 1000)[0]), row


def test_noise_is_close_in_triton(triton_kernels: Kernels, device: torch.device):
    """From equal hashes both back ends compute equal noise up to the precision of the device's logarithm, in both tails
    and where a series ends."""
    from tests.kernels.noise_kernel import gumbel

    tails = [0, 1, 2, 100, 2**20, 2**29 - 1, 2**29, 2**29 + 64, 2**31, 2**32 - 2**20, 2**32 - 129, 2**32 - 1]
    words = torch.cat((torch.tensor(tails), hashes(ROWS, 500).flatten()))
    torch.testing.assert_close(gumbel(words.to(device)).cpu(), noise.gumbel(words), atol=2e-6, rtol=2e-6)


def test_noise_is_the_gumbel_quantile_of_the_hash():
    """Noise is -log(-log(1 - u)) at u = (hash + 0.5) / 2^32, and the bound is above it."""
    words = [0, 1, 2, 3, 1000, 2**16, 2**31, 2**32 - 2**20]
    expected = [-math.log(-math.log1p(-(word + 0.5) / 2**32)) for word in words]
    torch.testing.assert_close(noise.gumbel(torch.tensor(words)), torch.tensor(expected), atol=1e-6, rtol=1e-5)
    assert noise.gumbel(torch.tensor([0]))[0] < noise.MAX_NOISE
    assert noise.gumbel(torch.tensor([2**32 - 1]))[0].isfinite()


def test_large_noise_is_fine_grained():
    """The first thousand hashes give a thousand different values, so rare tokens do not share noise."""
    assert len(set(noise.gumbel(torch.arange(1000)).tolist())) == 1000


@pytest.mark.parametrize("field", [0, 1, 2], ids=["seed", "position", "choice"])
def test_each_input_changes_the_noise(field: int):
    """Neighbouring seeds, positions and choices share no more hash bits than by chance."""
    rows = [tuple(step if i == field else 5 for i in range(3)) for step in range(64)]
    words = hashes(rows, 512)
    pairs = words[1:] ^ words[:-1]
    shifted = words[1:, 1:] ^ words[:-1, :-1]
    for differences in (pairs, shifted):
        bits = sum(((differences >> bit) & 1).double().mean() for bit in range(32)) / 32
        assert abs(float(bits) - 0.5) < 0.005


def test_hash_bits_are_even():
    """Over columns and over positions every bit of the hash is set half of the time."""
    words = hashes([(42, position, 0) for position in range(200)], 500)
    for bit in range(32):
        ones = ((words >> bit) & 1).double()
        assert abs(float(ones.mean()) - 0.5) < 0.01
        assert float((ones.mean(dim=0) - 0.5).abs().max()) < 0.2
        assert float((ones.mean(dim=1) - 0.5).abs().max()) < 0.15
