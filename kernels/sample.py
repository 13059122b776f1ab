"""The sampler: temperature, min_p, top_k, top_p, Gumbel noise, argmax. Nothing is sorted, no softmax is written.

A row is read by as many programs as it has slices, since one multiprocessor alone reads a vocabulary slowly; the best
of the slices' best is its token. Each filter is a threshold on the row's logits, which `kernels.filters` finds. A row's
result depends on nothing but the row.
"""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.filters import (
    BINS,
    GREEDY_BELOW,
    SEARCHES,
    STEPS,
    largest_value,
    load_block,
    narrowed,
    ordered,
    smallest_key,
    weigh,
)
from kernels.noise import KEY_START_A, KEY_START_B, column_hash, gumbel, row_key
from kernels.reference import sample as reference
from kernels.slots import SlotTensors

SLICE = 4096  # columns of one program
BROKEN = tl.constexpr(reference.BROKEN)
NUM_WARPS = 8


@triton.jit
def _is_plain(greedy, k, p, least, V):
    """Whether every column of a row may be sampled, or the largest is. least: its min_p."""
    return greedy | (((k <= 0) | (k >= V)) & (p >= 1.0) & (least <= 0.0))


@triton.jit
def _noise_keys(seed, position, choice):
    """The two that a token's noise is drawn with."""
    return row_key(KEY_START_A, seed, position, choice), row_key(KEY_START_B, seed, position, choice)


@triton.jit
def _store_best(best, best_column, scores, columns):
    """The largest of a slice's scores[SLICE] and the lowest column that has it; NaN where one of them is."""
    top = tl.max(scores, axis=0)
    lowest = tl.min(tl.where(scores == top, columns, 2147483647), axis=0)
    broken = tl.max((scores != scores).to(tl.int32), axis=0) != 0
    tl.store(best, tl.where(broken, float("nan"), top))
    tl.store(best_column, lowest)


@triton.jit
def _slice_kernel(
    logits,  # [R, V] any float
    which,  # [R] int64, each row's slot
    temperature,  # [slots] float32
    top_k,  # [slots] int32
    top_p,  # [slots] float32
    min_p,  # [slots] float32
    seed,  # [slots] int64
    position,  # [slots] int64
    choice,  # [slots] int64
    scores,  # [R, slices] float32
    columns,  # [R, slices] int32
    maxima,  # [R, slices] float32
    tallies,  # [R, SEARCHES, STEPS, BINS] int64
    V,
    SLICE: tl.constexpr,
):
    """The best of one slice of one row without filters; of another row the largest value, and a share of its tallies is
    set to zero.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(which + row)
    part = tl.program_id(1)
    out = row * tl.num_programs(1) + part
    given = tl.load(temperature + slot)
    greedy = given < GREEDY_BELOW
    covered = part * SLICE + tl.arange(0, SLICE)
    values = load_block(logits + row * V, covered, V)
    if _is_plain(greedy, tl.load(top_k + slot), tl.load(top_p + slot), tl.load(min_p + slot), V):
        if not greedy:
            key_a, key_b = _noise_keys(tl.load(seed + slot), tl.load(position + slot), tl.load(choice + slot))
            # No filter looks at these values, so they may be a unit in the last place from a quotient.
            values = values * tl.div_rn(1.0, given) + gumbel(column_hash(covered, key_a, key_b))
        _store_best(scores + out, columns + out, values, covered)
    else:
        tl.store(maxima + out, tl.max(tl.div_rn(values, given), axis=0))
        for tally in range(part, SEARCHES * STEPS, tl.num_programs(1)):
            bins = (row * SEARCHES * STEPS + tally) * BINS + tl.arange(0, BINS)
            tl.store(tallies + bins, tl.zeros([BINS], tl.int64))


@triton.jit
def _kept_kernel(
    logits,  # [R, V] any float
    which,  # [R] int64, each row's slot
    temperature,  # [slots] float32
    top_k,  # [slots] int32
    top_p,  # [slots] float32
    min_p,  # [slots] float32
    seed,  # [slots] int64
    position,  # [slots] int64
    choice,  # [slots] int64
    maxima,  # [R, slices] float32
    tallies,  # [R, SEARCHES, STEPS, BINS] int64
    found,  # [R, SEARCHES, STEPS - 1, 2] int64
    scores,  # [R, slices] float32
    columns,  # [R, slices] int32
    V,
    SLICE: tl.constexpr,
    SLICES: tl.constexpr,  # a power of two
):
    """The best of what the filters keep in one slice of one row, where the row has filters."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(which + row)
    part = tl.program_id(1)
    slices = tl.num_programs(1)
    divisor = tl.load(temperature + slot)
    k, p, least = tl.load(top_k + slot), tl.load(top_p + slot), tl.load(min_p + slot)
    if _is_plain(divisor < GREEDY_BELOW, k, p, least, V):
        return
    tallies += row * SEARCHES * STEPS * BINS
    found += row * SEARCHES * (STEPS - 1) * 2
    floor = smallest_key(tallies, found, largest_value(maxima + row * slices, slices, SLICES), k, least, V)
    if p < 1.0:
        nucleus = narrowed(tallies + STEPS * BINS, found + (STEPS - 1) * 2, k, p, True, STEPS)[0]
        floor = tl.maximum(floor, nucleus)
    key_a, key_b = _noise_keys(tl.load(seed + slot), tl.load(position + slot), tl.load(choice + slot))
    covered = part * SLICE + tl.arange(0, SLICE)
    values = tl.div_rn(load_block(logits + row * V, covered, V), divisor)
    noisy = values + gumbel(column_hash(covered, key_a, key_b))
    kept = tl.where((ordered(values) >= floor) | (values != values), noisy, float("-inf"))
    _store_best(scores + row * slices + part, columns + row * slices + part, kept, covered)


@triton.jit
def _sample_kernel(
    scores,  # [R, slices] float32: the best of each slice
    columns,  # [R, slices] int32
    ids,  # [R] int64
    which,  # [R] int64, each row's slot; this and what follows is used when ADVANCE
    last_tokens,  # [slots] int64
    lengths,  # [slots] int64
    slices,
    nobody,
    ADVANCE: tl.constexpr,
    SLICES: tl.constexpr,  # a power of two
):
    """The best of one row, of equal ones the lowest column; BROKEN if a slice is. Its slot is one token longer, unless
    it is nobody's.
    """
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, SLICES)
    inside = parts < slices
    found = tl.load(scores + row * slices + parts, mask=inside, other=float("-inf"))
    where = tl.load(columns + row * slices + parts, mask=inside, other=2147483647)
    top = tl.max(found, axis=0)
    broken = tl.max((found != found).to(tl.int32), axis=0) != 0
    column = tl.where(broken, BROKEN, tl.min(tl.where(found == top, where, 2147483647), axis=0)).to(tl.int64)
    tl.store(ids + row, column)
    if ADVANCE:
        slot = tl.load(which + row)
        if slot != nobody:
            tl.store(last_tokens + slot, tl.maximum(column, 0))
            tl.store(lengths + slot, tl.load(lengths + slot) + 1)


@dataclass(frozen=True)
class Search:
    """A launched search. best: what there is of each slice, scores float32 and columns int32 [R, slices]. searched:
    maxima, tallies and found, as the kernels say.
    """

    best: tuple[Tensor, Tensor]
    searched: tuple[Tensor, Tensor, Tensor]


def search(logits: Tensor, filters: tuple[Tensor, ...], noise: tuple[Tensor, ...], filtered: bool) -> Search:
    """Samples the slices of rows without filters and finds the thresholds of the others, unless there are none.
    filters: which, temperature, top_k, top_p and min_p; noise: seed, position and choice; as the kernels say.

    What is launched does not depend on which rows ask for what, which only the device knows: a program whose row has no
    use for it returns at once.
    """
    R, V = logits.shape
    slices = triton.cdiv(V, SLICE)
    scores, maxima = (torch.empty((R, slices), dtype=torch.float32, device=logits.device) for _ in range(2))
    columns = torch.empty((R, slices), dtype=torch.int32, device=logits.device)
    tallies, found = (
        torch.empty((R, SEARCHES.value, *shape), dtype=torch.int64, device=logits.device)
        for shape in ((STEPS.value, BINS.value), (STEPS.value - 1, 2))
    )
    made = Search((scores, columns), (maxima, tallies, found))
    _slice_kernel[(R, slices)](
        logits,
        *filters,
        *noise,
        *made.best,
        maxima,
        tallies,
        V,
        SLICE=SLICE,
        num_warps=NUM_WARPS,
    )
    if filtered:
        weigh(logits, filters, made.searched, slices)
    return made


def _best_slices(
    logits: Tensor, filters: tuple[Tensor, ...], noise: tuple[Tensor, ...], filtered: bool
) -> tuple[Tensor, Tensor]:
    """-> scores float32 and columns int32 [R, slices]: the best that each slice keeps."""
    R, V = logits.shape
    made = search(logits, filters, noise, filtered)
    if not filtered:
        return made.best
    slices = made.best[0].shape[1]
    _kept_kernel[(R, slices)](
        logits,
        *filters,
        *noise,
        *made.searched,
        *made.best,
        V,
        SLICE=SLICE,
        SLICES=triton.next_power_of_2(slices),
        num_warps=NUM_WARPS,
    )
    return made.best


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
    """logits[R, V] any float and one parameter per row -> ids[R] int64; see `kernels.interface.Kernels.sample`."""
    R = len(logits)
    each = torch.arange(R, device=logits.device)
    scores, columns = _best_slices(logits, (each, temperature, top_k, top_p, min_p), (seed, position, choice), True)
    ids = torch.empty(R, dtype=torch.int64, device=logits.device)
    slices = scores.shape[1]
    most = triton.next_power_of_2(slices)
    _sample_kernel[(R,)](scores, columns, ids, None, None, None, slices, -1, ADVANCE=False, SLICES=most, num_warps=1)
    return ids


def sample_slots(logits: Tensor, slots: SlotTensors, which: Tensor, ids: Tensor, filtered: bool) -> None:
    """logits[B, V] any float, which[B] int64, ids[B] int64; see `kernels.interface.Kernels.sample_slots`."""
    filters = (which, slots.temperature, slots.top_k, slots.top_p, slots.min_p)
    best = _best_slices(logits, filters, (slots.seed, slots.lengths, slots.choice), filtered)
    slices = best[0].shape[1]
    _sample_kernel[(len(logits),)](
        *best,
        ids,
        which,
        slots.last_tokens,
        slots.lengths,
        slices,
        slots.nobody,
        ADVANCE=True,
        SLICES=triton.next_power_of_2(slices),
        num_warps=1,
    )
