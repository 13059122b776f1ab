"""The two matrix products of attention, which decode and prefill share: scores, and the weighted sum over values.

A row's bits do not depend on how many rows there are nor on how long the padded context is, on any processor: what a
library would decide by those is fixed here or tried out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.tiles import LANES, TILE

MOST_ROWS = 64  # no product is padded to more rows than this


def softmax_scores(q: Tensor, keys: Tensor, hidden: Tensor, shape: tuple[int, int, int], scale: float) -> Tensor:
    """q[n, M, D], keys[n, L, D] -> attention weights [n, M, L].

    hidden: bool, positions to leave out, broadcast against the scores seen as [*shape, L].
    """
    M, L = q.shape[1], keys.shape[1]
    # Scaled here and not by the product: there the factor goes into the operands or the result, depending on the shape.
    scores = torch.bmm(_padded(q * scale, q.shape[2]), keys.transpose(1, 2))[:, :M]
    scores.view(*shape, L).masked_fill_(hidden, -math.inf)
    return scores.softmax(dim=-1)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """weights[n, M, L] @ values[n, L, D] -> [n, M, D], summed tile by tile in ascending order."""
    M, L = weights.shape[1:]
    weights = _padded(weights, values.shape[2])
    out = torch.bmm(weights[:, :, :TILE], values[:, :TILE])
    for tile in range(TILE, L, TILE):
        out += torch.bmm(weights[:, :, tile : tile + TILE], values[:, tile : tile + TILE])
    return out[:, :M]


def _padded(x: Tensor, head_dim: int) -> Tensor:
    """x[n, M, K] with rows of zeros behind, if it has so few that they would be summed in another order."""
    missing = least_rows(head_dim, x.dtype, torch.get_num_threads()) - x.shape[1]
    return F.pad(x, (0, 0, 0, missing)) if missing > 0 else x


@functools.cache
def least_rows(head_dim: int, dtype: torch.dtype, threads: int) -> int:
    """The fewest rows that q @ keys.T and weights @ values may have for a row's bits not to depend on how many there
    are.

    A product of few rows goes to kernels that sum in another order, and where they begin depends on the processor, the
    head size and the number of threads (MKL, scores: on a Xeon with AVX-512 below 2 rows for 32, 3 for 64, 6 for 128,
    11 for 256; on an EPYC below 4, with two threads below 12). So it is tried out, with the `threads` at hand.
    """
    if dtype != torch.float32:
        return 1
    generator = torch.Generator().manual_seed(0)
    q = torch.randn((1, 2 * MOST_ROWS, head_dim), generator=generator)
    keys = torch.randn((1, 512, head_dim), generator=generator)
    weights = torch.rand((1, 2 * MOST_ROWS, TILE), generator=generator)
    scores = [(q, keys[:, :length].transpose(1, 2)) for length in (32, 64, 96, 256, 512)]
    sums = [(weights[:, :, :length], keys[:, :length]) for length in range(LANES, TILE + 1, LANES)]
    return max(_least_rows(functools.partial(_rows, *product)) for product in scores + sums)


def _rows(x: Tensor, y: Tensor, rows: int) -> Tensor:
    return torch.bmm(x[:, :rows], y)


def _least_rows(product: Callable[[int], Tensor]) -> int:
    """From how many rows on a product's first rows have the bits that they have among all."""
    expected = product(2 * MOST_ROWS)
    differs = (rows for rows in range(MOST_ROWS - 1, 0, -1) if not torch.equal(product(rows), expected[:, :rows]))
    return next(differs, 0) + 1
