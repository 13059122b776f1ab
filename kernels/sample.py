"""The sampler in one kernel: temperature, min_p, top_k, top_p, Gumbel noise, argmax. One program per row of logits.

Each filter is a threshold on a row's logits. Thresholds are found by search over the logits' bit patterns, three bits
a pass, so there is no sort and ties need no order. A row's result depends on nothing but the row.
"""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.noise import KEY_START_A, KEY_START_B, column_hash, gumbel, row_key
from kernels.reference import sample as reference

BLOCK = 2048  # columns in a step of a pass
NUM_WARPS = 8
PASSES = tl.constexpr(11)  # of three bits each; the first one finds two
GREEDY_BELOW = tl.constexpr(reference.GREEDY_BELOW)


@triton.jit
def _ordered(values):
    """float32 -> int64 in [0, 2^32) in the same order, equal where the floats are equal."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)  # adding zero makes -0.0 equal to 0.0
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def _load(logits, start, divisor, V, BLOCK: tl.constexpr):
    """One block of a row, divided by its temperature, and the columns it covers."""
    columns = start + tl.arange(0, BLOCK)
    values = tl.load(logits + columns, mask=columns < V, other=float("-inf"))
    return tl.div_rn(values, divisor), columns


@triton.jit
def _search(logits, divisor, V, largest, floor, target, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key such that the columns at or above it reach the target.

    MASS: the target is a fraction of the summed exp(value - largest); otherwise a number of columns. Columns below
    `floor` do not count.
    """
    threshold = tl.zeros([1], tl.int64)
    for step in range(PASSES):
        shift = 30 - 3 * step
        candidates = threshold + (tl.arange(0, 8).to(tl.int64) << shift)
        reached = tl.zeros([8], tl.float32)
        for start in range(0, V, BLOCK):
            values, columns = _load(logits, start, divisor, V, BLOCK)
            keys = _ordered(values)
            share = tl.full([BLOCK], 1.0, tl.float32)
            if MASS:
                share = tl.exp(values - largest)
            share = tl.where((columns < V) & (keys >= floor), share, 0.0)
            reached += tl.sum(tl.where(keys[None, :] >= candidates[:, None], share[None, :], 0.0), axis=1)
        if MASS and step == 0:
            # Candidate 0 of the first pass is below everything: what it reaches is the whole.
            target = target * tl.max(reached, axis=0)
        # Candidates ascend, so those that reach the target come first; candidate 0 did so in the pass before.
        enough = (reached >= target) & (reached > 0)  # a target of 0 still keeps one column
        best = tl.maximum(tl.sum(enough.to(tl.int64), axis=0) - 1, 0)
        threshold += best << shift
    return tl.max(threshold, axis=0)


@triton.jit
def _sample_kernel(
    logits,  # [R, V] float32
    temperature,  # [R] float32
    top_k,  # [R] int32
    top_p,  # [R] float32
    log_min_p,  # [R] float32, -inf: off
    seed,  # [R] int64
    position,  # [R] int64
    choice,  # [R] int64
    ids,  # [R] int64
    V,
    BLOCK: tl.constexpr,
):
    """Samples one row."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * V
    given = tl.load(temperature + row)
    greedy = given < GREEDY_BELOW
    divisor = tl.where(greedy, 1.0, given)

    largest = float("-inf")
    for start in range(0, V, BLOCK):
        values, columns = _load(logits, start, divisor, V, BLOCK)
        largest = tl.maximum(largest, tl.max(values, axis=0))

    floor = tl.zeros([], tl.int64)
    if greedy:
        floor = _ordered(largest)
    else:
        floor = _ordered(largest + tl.load(log_min_p + row))
        k = tl.load(top_k + row)
        if (k > 0) & (k < V):
            everything = tl.zeros([], tl.int64)
            kth = _search(logits, divisor, V, largest, everything, k.to(tl.float32), False, BLOCK)
            floor = tl.maximum(floor, kth)
        p = tl.load(top_p + row)
        if p < 1.0:
            floor = tl.maximum(floor, _search(logits, divisor, V, largest, floor, p, True, BLOCK))

    words = (tl.load(seed + row), tl.load(position + row), tl.load(choice + row))
    key_a = row_key(KEY_START_A, words[0], words[1], words[2])
    key_b = row_key(KEY_START_B, words[0], words[1], words[2])
    best = float("-inf")
    best_column = tl.zeros([], tl.int32)
    for start in range(0, V, BLOCK):
        values, columns = _load(logits, start, divisor, V, BLOCK)
        noise = tl.where(greedy, 0.0, gumbel(column_hash(columns, key_a, key_b)))
        kept = (columns < V) & (_ordered(values) >= floor)
        scores = tl.where(kept, values + noise, float("-inf"))
        block_best = tl.max(scores, axis=0)
        if block_best > best:
            best = block_best
            best_column = tl.min(tl.where(scores == block_best, columns, V), axis=0)
    tl.store(ids + row, best_column.to(tl.int64))


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
    R, V = logits.shape
    ids = torch.empty(R, dtype=torch.int64, device=logits.device)
    _sample_kernel[(R,)](
        logits, temperature, top_k, top_p, min_p.log(), seed, position, choice, ids, V, BLOCK=BLOCK, num_warps=NUM_WARPS
    )
    return ids
