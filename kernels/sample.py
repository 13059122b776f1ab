"""The sampler: temperature, min_p, top_k, top_p, Gumbel noise, argmax. Nothing is sorted, no softmax is written.

A row without filters is read once, by as many programs as it has slices, since one multiprocessor alone reads a
vocabulary slowly; the best of the slices' best is its token. A row with filters is left to one program. Each filter is
a threshold on its logits, found by search over their bit patterns, three bits a pass, so ties need no order. A row's
result depends on nothing but the row.
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
SLICE = 2 * BLOCK
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
def _is_plain(greedy, k, p, log_min_p, V):
    """Whether every column of a row may be sampled, or the largest is."""
    return greedy | (((k <= 0) | (k >= V)) & (p >= 1.0) & (log_min_p == float("-inf")))


@triton.jit
def _best(logits, first, last, V, divisor, greedy, floor, key_a, key_b, BLOCK: tl.constexpr):
    """The largest value + noise among columns first..last-1 at or above `floor`, and the lowest column that has it."""
    best = float("-inf")
    best_column = tl.zeros([], tl.int32) + first
    for start in range(first, last, BLOCK):
        values, columns = _load(logits, start, divisor, V, BLOCK)
        noise = tl.where(greedy, 0.0, gumbel(column_hash(columns, key_a, key_b)))
        kept = (columns < V) & (_ordered(values) >= floor)
        scores = tl.where(kept, values + noise, float("-inf"))
        block_best = tl.max(scores, axis=0)
        if block_best > best:
            best = block_best
            best_column = tl.min(tl.where(scores == block_best, columns, V), axis=0)
    return best, best_column


@triton.jit
def _slice_kernel(
    logits,  # [R, V] float32
    temperature,  # [R] float32
    top_k,  # [R] int32
    top_p,  # [R] float32
    log_min_p,  # [R] float32, -inf: off
    seed,  # [R] int64
    position,  # [R] int64
    choice,  # [R] int64
    scores,  # [R, slices] float32
    columns,  # [R, slices] int32
    V,
    SLICE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The best of one slice of one row, where the row has no filters."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    given = tl.load(temperature + row)
    greedy = given < GREEDY_BELOW
    if not _is_plain(greedy, tl.load(top_k + row), tl.load(top_p + row), tl.load(log_min_p + row), V):
        return
    divisor = tl.where(greedy, 1.0, given)
    words = (tl.load(seed + row), tl.load(position + row), tl.load(choice + row))
    key_a = row_key(KEY_START_A, words[0], words[1], words[2])
    key_b = row_key(KEY_START_B, words[0], words[1], words[2])
    everything = tl.zeros([], tl.int64)
    best, column = _best(
        logits + row * V, part * SLICE, part * SLICE + SLICE, V, divisor, greedy, everything, key_a, key_b, BLOCK
    )
    out = row * tl.num_programs(1) + part
    tl.store(scores + out, best)
    tl.store(columns + out, column)


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
    slice_scores,  # [R, slices] float32: the best of each slice of rows without filters
    slice_columns,  # [R, slices] int32
    ids,  # [R] int64
    V,
    slices,
    SLICES: tl.constexpr,  # a power of two
    BLOCK: tl.constexpr,
):
    """Samples one row."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * V
    given = tl.load(temperature + row)
    greedy = given < GREEDY_BELOW
    divisor = tl.where(greedy, 1.0, given)
    k = tl.load(top_k + row)
    p = tl.load(top_p + row)
    least = tl.load(log_min_p + row)
    if _is_plain(greedy, k, p, least, V):
        parts = tl.arange(0, SLICES)
        found = tl.load(slice_scores + row * slices + parts, mask=parts < slices, other=float("-inf"))
        where = tl.load(slice_columns + row * slices + parts, mask=parts < slices, other=V)
        top = tl.max(found, axis=0)
        tl.store(ids + row, tl.min(tl.where(found == top, where, V), axis=0).to(tl.int64))
        return

    largest = float("-inf")
    for start in range(0, V, BLOCK):
        values = _load(logits, start, divisor, V, BLOCK)[0]
        largest = tl.maximum(largest, tl.max(values, axis=0))

    floor = _ordered(largest + least)
    if (k > 0) & (k < V):
        everything = tl.zeros([], tl.int64)
        kth = _search(logits, divisor, V, largest, everything, k.to(tl.float32), False, BLOCK)
        floor = tl.maximum(floor, kth)
    if p < 1.0:
        floor = tl.maximum(floor, _search(logits, divisor, V, largest, floor, p, True, BLOCK))
    words = (tl.load(seed + row), tl.load(position + row), tl.load(choice + row))
    key_a = row_key(KEY_START_A, words[0], words[1], words[2])
    key_b = row_key(KEY_START_B, words[0], words[1], words[2])
    _, column = _best(logits, 0, V, V, divisor, greedy, floor, key_a, key_b, BLOCK)
    tl.store(ids + row, column.to(tl.int64))


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
    slices = triton.cdiv(V, SLICE)
    scores = torch.empty((R, slices), dtype=torch.float32, device=logits.device)
    columns = torch.empty((R, slices), dtype=torch.int32, device=logits.device)
    ids = torch.empty(R, dtype=torch.int64, device=logits.device)
    given = (logits, temperature, top_k, top_p, min_p.log(), seed, position, choice)
    _slice_kernel[(R, slices)](*given, scores, columns, V, SLICE=SLICE, BLOCK=BLOCK, num_warps=NUM_WARPS)
    _sample_kernel[(R,)](
        *given,
        scores,
        columns,
        ids,
        V,
        slices,
        SLICES=triton.next_power_of_2(slices),
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    return ids
