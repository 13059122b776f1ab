"""Matrix products of attention, shared by decode and prefill: scores, and the weighted sum over values.

A row's bits depend neither on the number of rows nor on the length of the padded context, on any processor. Choices
that a library makes by those sizes are fixed here or probed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.tiles import LANES, TILE

MAX_PADDED_ROWS = 64  # products are never padded to more rows


def softmax_scores(q: Tensor, keys: Tensor, hidden: Tensor, shape: tuple[int, int, int], scale: float) -> Tensor:
    """Return attention weights: q[n, M, D], keys[n, L, D] -> [n, M, L].

    hidden: bool, positions to mask, broadcast against the scores viewed as [*shape, L].
    """
    M, L = q.shape[1], keys.shape[1]
    # Scale q here: the product would apply a factor to the operands or to the result, depending on the shape.
    scores = torch.bmm(_padded(q * scale, q.shape[2]), keys.transpose(1, 2))[:, :M]
    scores.view(*shape, L).masked_fill_(hidden, -math.inf)
    return scores.softmax(dim=-1)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Compute weights[n, M, L] @ values[n, L, D] -> [n, M, D], summed tile by tile in ascending order."""
    M, L = weights.shape[1:]
    weights = _padded(weights, values.shape[2])
    out = torch.bmm(weights[:, :, :TILE], values[:, :TILE])
    for tile in range(TILE, L, TILE):
        out += torch.bmm(weights[:, :, tile : tile + TILE], values[:, tile : tile + TILE])
    return out[:, :M]


def _padded(x: Tensor, head_dim: int) -> Tensor:
    """Append rows of zeros to x[n, M, K] if it has so few rows that they would be summed in another order."""
    missing = min_rows(head_dim, x.dtype, torch.get_num_threads()) - x.shape[1]
    return F.pad(x, (0, 0, 0, missing)) if missing > 0 else x


@functools.cache
def min_rows(head_dim: int, dtype: torch.dtype, threads: int) -> int:
    """Return the row count from which a row's bits in q @ keys.T and weights @ values do not depend on that count.

    Products of few rows go to kernels that sum in another order. Their threshold depends on the processor, the head
    size and the number of threads (MKL, scores: on a Xeon with AVX-512 below 2 rows for heads of 32, 3 for 64, 6 for
    128, 11 for 256; on an EPYC below 4, with two threads below 12). So it is probed, with the current `threads`.
    """
    if dtype != torch.float32:
        return 1
    generator = torch.Generator().manual_seed(0)
    q = torch.randn((1, 2 * MAX_PADDED_ROWS, head_dim), generator=generator)
    keys = torch.randn((1, 512, head_dim), generator=generator)
    weights = torch.rand((1, 2 * MAX_PADDED_ROWS, TILE), generator=generator)
    scores = [(q, keys[:, :length].transpose(1, 2)) for length in (32, 64, 96, 256, 512)]
    sums = [(weights[:, :, :length], keys[:, :length]) for length in range(LANES, TILE + 1, LANES)]
    return max(_min_rows(functools.partial(_rows, *product)) for product in scores + sums)


def _rows(x: Tensor, y: Tensor, rows: int) -> Tensor:
    return torch.bmm(x[:, :rows], y)


def _min_rows(product: Callable[[int], Tensor]) -> int:
    """Return the row count from which a product's rows have the same bits as in the largest product."""
    expected = product(2 * MAX_PADDED_ROWS)
    differs = (rows for rows in range(MAX_PADDED_ROWS - 1, 0, -1) if not torch.equal(product(rows), expected[:, :rows]))
    return next(differs, 0) + 1
