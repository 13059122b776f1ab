"""Kernel that exposes the sampler's threshold of each row to tests."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton import filters, sample


@triton.jit
def _threshold_kernel(top_k, top_p, min_p, maxima, tallies, found, keys, V, groups, GROUPS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    tallies += row * filters.SEARCHES * filters.STEPS * filters.BINS
    found += row * filters.SEARCHES * (filters.STEPS - 1) * 2
    k, p = tl.load(top_k + row), tl.load(top_p + row)
    largest = filters.largest_value(maxima + row * groups, groups, GROUPS)
    floor = filters.smallest_key(tallies, found, largest, k, tl.load(min_p + row), V)
    if p < 1.0:
        tallies += filters.STEPS * filters.BINS
        found += (filters.STEPS - 1) * 2
        floor = tl.maximum(floor, filters.search_state(tallies, found, k, p, True, filters.STEPS)[0])
    tl.store(keys + row, floor)


def searched(logits: Tensor, given: dict[str, Tensor]) -> sample.SamplerSearch:
    """Return the search state for logits[R, V] and the sampler's parameters, with a filter in every row."""
    return sample.launch_search(
        logits,
        (
            torch.arange(len(logits), device=logits.device),
            *(given[name] for name in ("temperature", "top_k", "top_p", "min_p")),
        ),
        tuple(given[name] for name in ("seed", "position", "choice")),
        filtered=True,
    )


def threshold(logits: Tensor, given: dict[str, Tensor]) -> Tensor:
    """Return the smallest kept value, [R] float32, for logits[R, V] and the sampler's parameters, with a filter in
    every row."""
    R, V = logits.shape
    maxima, tallies, found = searched(logits, given).buffers
    keys = torch.empty(R, dtype=torch.int64, device=logits.device)
    groups = maxima.shape[1]
    _threshold_kernel[(R,)](
        given["top_k"],
        given["top_p"],
        given["min_p"],
        maxima,
        tallies,
        found,
        keys,
        V,
        groups,
        GROUPS=triton.next_power_of_2(groups),
    )
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(torch.int32).view(torch.float32)
