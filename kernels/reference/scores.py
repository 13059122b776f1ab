"""Scaled, masked, softmaxed attention scores: the part decode and prefill share."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_ROWS = 64  # no product is padded to more rows than this


def softmax_scores(q: Tensor, keys: Tensor, hidden: Tensor, shape: tuple[int, int, int], scale: float) -> Tensor:
    """q[n, M, D], keys[n, L, D] -> attention weights [n, M, L].

    hidden: bool, positions to leave out, broadcast against the scores seen as [*shape, L].
    """
    M, L = q.shape[1], keys.shape[1]
    # Scaled here and not by the product: there the factor goes into the operands or the result, depending on the shape.
    q = q * scale
    missing = least_rows(q.shape[2], q.dtype) - M
    if missing > 0:
        q = F.pad(q, (0, 0, 0, missing))
    scores = torch.bmm(q, keys.transpose(1, 2))[:, :M]
    scores.view(*shape, L).masked_fill_(hidden, -math.inf)
    return scores.softmax(dim=-1)


@functools.cache
def least_rows(head_dim: int, dtype: torch.dtype) -> int:
    """The fewest rows q may have in q @ keys.T for a row's bits not to depend on how many there are.

    A product of few rows goes to kernels that sum in another order, and where they begin depends on the processor and
    the head size (MKL with AVX-512: below 2 rows for 32, 3 for 64, 6 for 128, 11 for 256). So it is tried out, once
    per head size.
    """
    if dtype != torch.float32:
        return 1
    generator = torch.Generator().manual_seed(0)
    q = torch.randn((1, 2 * MOST_ROWS, head_dim), generator=generator)
    keys = torch.randn((1, 512, head_dim), generator=generator)
    expected = torch.bmm(q, keys.transpose(1, 2))

    def differs(rows: int) -> bool:
        lengths = (32, 64, 96, 256, 512)
        return any(
            not torch.equal(torch.bmm(q[:, :rows], keys[:, :length].transpose(1, 2)), expected[:, :rows, :length])
            for length in lengths
        )

    return next((rows + 1 for rows in range(MOST_ROWS - 1, 0, -1) if differs(rows)), 1)
