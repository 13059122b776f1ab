"""Kernel that exposes the sampler's threshold of each row to tests."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.slots import SamplingTensors
from kernels.triton import filters, sample


@triton.jit
def _threshold_kernel(records, scratch, keys, V, groups, GROUPS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    record = records + row * filters.RECORD_BYTES
    scratch = filters.row_scratch(scratch, row, groups)
    largest = filters.largest_value(scratch, groups, GROUPS)
    floor = filters.smallest_key(record, scratch, largest, V, groups, GROUPS)
    kept = filters.smallest_kept_key(record, scratch, largest, V, groups, GROUPS)
    tl.store(keys + row, tl.maximum(floor, kept))


def searched(logits: Tensor, sampling: SamplingTensors) -> Tensor:
    """Return the search's scratch memory for logits[R, V] and parameters with a filter in every row."""
    return sample.launch_search(
        logits, sampling, torch.arange(len(logits), device=logits.device), filtered=True
    ).scratch


def tallies(scratch: Tensor) -> Tensor:
    """Return a view of the tallies in scratch memory: [R, SEARCHES, STEPS, BINS] int64."""
    sizes = (filters.SEARCHES.value, filters.STEPS.value, filters.BINS.value)
    return scratch[:, : filters.FOUND.value].unflatten(1, sizes)


def threshold(logits: Tensor, sampling: SamplingTensors) -> Tensor:
    """Return the smallest kept value, [R] float32, for logits[R, V] and parameters with a filter in every row."""
    R, V = logits.shape
    keys = torch.empty(R, dtype=torch.int64, device=logits.device)
    groups = filters.group_count(V)
    _threshold_kernel[(R,)](
        sampling.records, searched(logits, sampling), keys, V, groups, GROUPS=triton.next_power_of_2(groups)
    )
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(torch.int32).view(torch.float32)
