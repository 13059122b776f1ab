"""Batched sampling: a request's token is a function of its own logits, parameters and seed, never of its neighbours.

Each filter is a threshold on a row's logits, so ties need no order: a token as large as the smallest kept one is
kept. Noise is computed only for tokens that can still win, which changes nothing: noise is at most LARGEST_NOISE, so
a token further below the current best score cannot pass it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.reference.noise import LARGEST_NOISE, column_hash, gumbel, row_keys

# Nucleus sampling looks at this many largest tokens first; a row whose nucleus is larger is sorted in full. The sums
# are taken in the same order either way, so the number does not change any result.
SHORT_LIST = 1024

GREEDY_BELOW = 1e-5  # of temperature, as in vLLM: dividing by less leaves no room for noise in a float32


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
    choice: Tensor,
) -> Tensor:
    """logits[R, V] float32 and one parameter per row -> ids[R] int64; see `kernels.interface.Kernels.sample`."""
    ids = logits.argmax(dim=-1)
    rows = (temperature >= GREEDY_BELOW).nonzero().squeeze(1)
    if rows.numel() == 0:
        return ids
    if rows.numel() < logits.shape[0]:
        logits, temperature, top_k, top_p, min_p, seed, position, choice = (
            x.index_select(0, rows) for x in (logits, temperature, top_k, top_p, min_p, seed, position, choice)
        )
    scaled = logits / temperature.unsqueeze(1)
    threshold = filter_threshold(scaled, top_k, top_p, min_p)
    ids[rows] = _perturbed_argmax(scaled, threshold, *row_keys(seed, position, choice))
    return ids


def filter_threshold(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """scaled[R, V], logits / temperature -> [R]: the smallest logit each row's filters keep, -inf where nothing is
    filtered.
    """
    threshold = torch.full_like(top_p, -math.inf)
    if bool((min_p > 0).any()):
        threshold = scaled.amax(dim=-1) + min_p.log()  # p >= min_p * p_max, in logits
    limits = torch.where((top_k > 0) & (top_k < scaled.shape[1]), top_k, 0)
    largest = int(limits.max())
    if largest > 0:
        smallest_kept = scaled.topk(largest, dim=-1).values.gather(
            1, (limits - 1).clamp_(min=0).to(torch.int64).unsqueeze(1)
        )
        threshold = torch.where(limits > 0, torch.maximum(threshold, smallest_kept.squeeze(1)), threshold)
    rows = (top_p < 1).nonzero().squeeze(1)
    if rows.numel() > 0:
        threshold[rows] = _nucleus_threshold(scaled[rows], threshold[rows], top_p[rows])
    return threshold


def _nucleus_threshold(scaled: Tensor, threshold: Tensor, top_p: Tensor) -> Tensor:
    """scaled[R, V], threshold[R] of the filters before, top_p[R] -> [R], the threshold with top_p added (Holtzman et
    al., 2020).
    """
    weights = (scaled - scaled.amax(dim=-1, keepdim=True)).exp_()
    weights.masked_fill_(scaled < threshold.unsqueeze(1), 0)
    target = top_p * weights.sum(dim=-1, dtype=torch.float64)
    width = min(SHORT_LIST, scaled.shape[1])
    result, reached = _nucleus_of_largest(scaled, threshold, target, width)
    for row in (~reached).nonzero().squeeze(1).tolist():
        one = slice(row, row + 1)
        result[one], _ = _nucleus_of_largest(scaled[one], threshold[one], target[one], scaled.shape[1])
    return result


def _nucleus_of_largest(scaled: Tensor, threshold: Tensor, target: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The smallest of the `width` largest logits that is needed to reach the target mass [R], and whether these reach
    it.
    """
    largest = scaled.topk(width, dim=-1).values
    weights = (largest - largest[:, :1]).exp_().masked_fill_(largest < threshold.unsqueeze(1), 0)
    mass = weights.cumsum(dim=-1, dtype=torch.float64)
    # A token is needed while the mass of those before it falls short; the first one always is.
    needed = (mass[:, :-1] < target.unsqueeze(1)).sum(dim=-1)
    reached = (mass[:, -1] >= target) | (width == scaled.shape[1])
    return torch.maximum(threshold, largest.gather(1, needed.unsqueeze(1)).squeeze(1)), reached


def _perturbed_argmax(scaled: Tensor, threshold: Tensor, key_a: Tensor, key_b: Tensor) -> Tensor:
    """argmax over V of scaled + noise among scaled >= threshold: the Gumbel-max trick (Gumbel, 1954). scaled[R, V] ->
    [R].
    """
    top, column = scaled.max(dim=-1)
    reachable = top + gumbel(column_hash(column, key_a, key_b)) - LARGEST_NOISE
    kept = scaled >= torch.maximum(threshold, reachable).unsqueeze(1)
    rows, columns = kept.nonzero(as_tuple=True)
    scores = scaled[rows, columns] + gumbel(column_hash(columns, key_a[rows], key_b[rows]))
    best = torch.full_like(top, -math.inf).scatter_reduce_(0, rows, scores, "amax")
    winners = (scores == best[rows]).nonzero().squeeze(1)
    # Of equal scores the lowest column wins; a row of NaN has no winner and keeps the column of its first NaN.
    return column.scatter_reduce_(0, rows[winners], columns[winners], "amin", include_self=False)
