"""Sampler: temperature, min_p, top_k, top_p, Gumbel noise, argmax, without sorting and without storing a softmax.

Several programs read each row, because a single multiprocessor reads a vocabulary slowly; the row's token is the best
candidate of its programs. Each filter is a threshold on the row's logits, found by `kernels.triton.filters`. A row's
result depends on that row only.
"""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference import sample as reference
from kernels.slots import SlotTensors
from kernels.triton.filters import (
    BINS,
    BLOCK,
    GREEDY_BELOW,
    GROUP,
    NUM_WARPS,
    SEARCHES,
    STEPS,
    block_mask,
    has_nan,
    largest_value,
    limits_top_k,
    load_block,
    load_block_if,
    order_key,
    programs_per_row,
    search_state,
    smallest_key,
    weigh,
)
from kernels.triton.noise import KEY_START_A, KEY_START_B, column_hash, gumbel, row_key
from kernels.triton.pdl import pdl_options, wait_for_previous

SLICE = tl.constexpr(4096)  # columns per program for rows without filters
BROKEN = tl.constexpr(reference.NAN_TOKEN)
NO_COLUMN = tl.constexpr(2147483647)
SLICE_WARPS = 8


@triton.jit
def _is_plain(greedy, k, p, least, V):
    """Return whether the row is greedy or has no filters. least: the row's min_p."""
    return greedy | (((k <= 0) | (k >= V)) & (p >= 1.0) & (least <= 0.0))


@triton.jit
def _noise_keys(seed, position, choice):
    """Return the two uint32 keys of a row's noise."""
    return row_key(KEY_START_A, seed, position, choice), row_key(KEY_START_B, seed, position, choice)


@triton.jit
def _store_best(best, best_column, scores, columns):
    """Store the largest of scores[N] (NaN if any score is NaN) and the lowest of columns[N] with that score."""
    top = tl.max(scores, axis=0)
    tl.store(best, tl.where(has_nan(scores), float("nan"), top))
    tl.store(best_column, tl.min(tl.where(scores == top, columns, NO_COLUMN), axis=0))


@triton.jit
def _store_nothing(best, best_column):
    """Store -inf and column 0, the token of a row without any candidate."""
    tl.store(best, float("-inf"))
    tl.store(best_column, 0)


@triton.jit(do_not_specialize=["entries"])
def _slice_kernel(
    logits,  # [R, V] any float
    which,  # [R] int64, slot of each row
    temperature,  # [slots] float32
    top_k,  # [slots] int32
    top_p,  # [slots] float32
    min_p,  # [slots] float32
    seed,  # [slots] int64
    position,  # [slots] int64
    choice,  # [slots] int64
    scores,  # [R, entries] float32
    columns,  # [R, entries] int32
    maxima,  # [R, groups] float32
    tallies,  # [R, SEARCHES, STEPS, BINS] int64
    V,
    entries,
    EARLY: tl.constexpr,
):
    """Process one slice of one row.

    Without filters, store the slice's best score and column. With filters, store the largest value of each group of
    the slice (NaN if the slice contains one) and zero a share of the row's tallies.
    """
    wait_for_previous(EARLY)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(which + row)
    part = tl.program_id(1)
    scores += row * entries + part
    columns += row * entries + part
    divisor = tl.load(temperature + slot)
    greedy = divisor < GREEDY_BELOW
    k, p = tl.load(top_k + slot), tl.load(top_p + slot)
    covered = part * SLICE + tl.arange(0, SLICE)
    values = load_block(logits + row * V, covered, V)
    if _is_plain(greedy, k, p, tl.load(min_p + slot), V):
        if not greedy:
            key_a, key_b = _noise_keys(tl.load(seed + slot), tl.load(position + slot), tl.load(choice + slot))
            # No filter compares these values, so an error of one unit in the last place is acceptable.
            values = values * tl.div_rn(1.0, divisor) + gumbel(column_hash(covered, key_a, key_b))
        _store_best(scores, columns, values, covered)
    else:
        _store_nothing(scores, columns)
        GROUPS: tl.constexpr = SLICE // GROUP
        largest = tl.max(tl.reshape(tl.div_rn(values, divisor), [GROUPS, GROUP]), axis=1)
        largest = tl.where(has_nan(values), float("nan"), largest)
        tl.store(maxima + (row * tl.num_programs(1) + part) * GROUPS + tl.arange(0, GROUPS), largest)
        for tally in range(part, SEARCHES * STEPS, tl.num_programs(1)):
            if ((tally < STEPS) & limits_top_k(k, V)) | ((tally >= STEPS) & (p < 1.0)):
                bins = (row * SEARCHES * STEPS + tally) * BINS + tl.arange(0, BINS)
                tl.store(tallies + bins, tl.zeros([BINS], tl.int64))


@triton.jit(do_not_specialize=["entries", "blocks"])
def _kept_kernel(
    logits,  # [R, V] any float
    which,  # [R] int64, slot of each row
    temperature,  # [slots] float32
    top_k,  # [slots] int32
    top_p,  # [slots] float32
    min_p,  # [slots] float32
    seed,  # [slots] int64
    position,  # [slots] int64
    choice,  # [slots] int64
    maxima,  # [R, groups] float32
    tallies,  # [R, SEARCHES, STEPS, BINS] int64
    found,  # [R, SEARCHES, STEPS - 1, 2] int64
    scores,  # [R, entries] float32
    columns,  # [R, entries] int32
    V,
    entries,
    groups,
    blocks,
    GROUPS: tl.constexpr,  # a power of two
    EARLY: tl.constexpr,
):
    """Store the best candidate that the filters keep in `blocks` blocks of one row; -inf for a row without filters."""
    wait_for_previous(EARLY)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(which + row)
    part = tl.program_id(1)
    divisor = tl.load(temperature + slot)
    k, p, least = tl.load(top_k + slot), tl.load(top_p + slot), tl.load(min_p + slot)
    out = row * entries + entries - tl.num_programs(1) + part  # after the entries of slices
    scores += out
    columns += out
    if _is_plain(divisor < GREEDY_BELOW, k, p, least, V):
        _store_nothing(scores, columns)
        return
    maxima += row * groups
    largest = largest_value(maxima, groups, GROUPS)
    if largest != largest:
        tl.store(scores, largest)
        return
    tallies += row * SEARCHES * STEPS * BINS
    found += row * SEARCHES * (STEPS - 1) * 2
    if p < 1.0:  # the top_p threshold is computed among the columns that the other filters keep
        floor = search_state(tallies + STEPS * BINS, found + (STEPS - 1) * 2, k, p, True, STEPS)[0]
    else:
        floor = smallest_key(tallies, found, largest, k, least, V)
    key_a, key_b = _noise_keys(tl.load(seed + slot), tl.load(position + slot), tl.load(choice + slot))
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_columns = tl.zeros([BLOCK], tl.int32)
    first = part * blocks
    read = block_mask(floor, maxima, first, blocks, V, groups)
    ahead = load_block_if(read, logits + row * V, first, 0, V)
    for block in range(blocks):
        loaded, ahead = ahead, load_block_if(read, logits + row * V, first, block + 1, V)
        if (read >> block) & 1:
            covered = (first + block) * BLOCK + tl.arange(0, BLOCK)
            values = tl.div_rn(loaded.to(tl.float32), divisor)
            noisy = values + gumbel(column_hash(covered, key_a, key_b))
            better = (order_key(values) >= floor) & (noisy > best)
            best, best_columns = tl.where(better, noisy, best), tl.where(better, covered, best_columns)
    _store_best(scores, columns, best, best_columns)


@triton.jit(do_not_specialize=["entries"])
def _sample_kernel(
    scores,  # [R, entries] float32: the best of each part
    columns,  # [R, entries] int32
    ids,  # [R] int64
    which,  # [R] int64, slot of each row; used with ADVANCE, like the next two
    last_tokens,  # [slots] int64
    lengths,  # [slots] int64
    entries,
    nobody,
    ADVANCE: tl.constexpr,
    MOST: tl.constexpr,  # a power of two
    EARLY: tl.constexpr,
):
    """Store the token of one row: the best entry, the lowest column among equals, BROKEN if an entry is NaN.

    With ADVANCE, append the token to the row's slot unless the row is padding.
    """
    wait_for_previous(EARLY)
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, MOST)
    inside = parts < entries
    found = tl.load(scores + row * entries + parts, mask=inside, other=float("-inf"))
    candidates = tl.load(columns + row * entries + parts, mask=inside, other=NO_COLUMN)
    lowest = tl.min(tl.where(found == tl.max(found, axis=0), candidates, NO_COLUMN), axis=0)
    column = tl.where(has_nan(found), BROKEN, lowest).to(tl.int64)
    tl.store(ids + row, column)
    if ADVANCE:
        slot = tl.load(which + row)
        if slot != nobody:
            tl.store(last_tokens + slot, tl.maximum(column, 0))
            tl.store(lengths + slot, tl.load(lengths + slot) + 1)


@dataclass(frozen=True)
class SamplerSearch:
    """Buffers of a launched search.

    best: scores float32 and columns int32, both [R, entries]: one entry per slice and, with filters, one per program
    of `_kept_kernel`. searched: maxima, tallies and found, with the shapes listed in the kernels.
    """

    candidates: tuple[Tensor, Tensor]
    buffers: tuple[Tensor, Tensor, Tensor]


def launch_search(
    logits: Tensor, filters: tuple[Tensor, ...], noise: tuple[Tensor, ...], filtered: bool
) -> SamplerSearch:
    """Sample the slices of rows without filters and, if `filtered`, find the thresholds of the other rows.

    filters: which, temperature, top_k, top_p and min_p; noise: seed, position and choice; shapes as in the kernels.
    The launches do not depend on the rows' parameters, which are on the device; unneeded programs return at once.
    """
    R, V = logits.shape
    slices = triton.cdiv(V, SLICE.value)
    entries = slices + programs_per_row(R, V) if filtered else slices
    scores = torch.empty((R, entries), dtype=torch.float32, device=logits.device)
    columns = torch.empty((R, entries), dtype=torch.int32, device=logits.device)
    maxima = torch.empty((R, slices * (SLICE.value // GROUP.value)), dtype=torch.float32, device=logits.device)
    tallies, found = (
        torch.empty((R, SEARCHES.value, *shape), dtype=torch.int64, device=logits.device)
        for shape in ((STEPS.value, BINS.value), (STEPS.value - 1, 2))
    )
    search_result = SamplerSearch((scores, columns), (maxima, tallies, found))
    _slice_kernel[(R, slices)](
        logits,
        *filters,
        *noise,
        *search_result.candidates,
        maxima,
        tallies,
        V,
        entries,
        num_warps=SLICE_WARPS,
        **pdl_options(logits.device),
    )
    if filtered:
        weigh(logits, filters, search_result.buffers)
    return search_result


def _best_parts(
    logits: Tensor, filters: tuple[Tensor, ...], noise: tuple[Tensor, ...], filtered: bool
) -> tuple[Tensor, Tensor]:
    """Return scores float32 and columns int32, both [R, entries]: the best candidate of each part of a row."""
    R, V = logits.shape
    search_result = launch_search(logits, filters, noise, filtered)
    if not filtered:
        return search_result.candidates
    groups, programs = search_result.buffers[0].shape[1], programs_per_row(R, V)
    _kept_kernel[(R, programs)](
        logits,
        *filters,
        *noise,
        *search_result.buffers,
        *search_result.candidates,
        V,
        search_result.candidates[0].shape[1],
        groups,
        triton.cdiv(V, programs * BLOCK.value),
        GROUPS=triton.next_power_of_2(groups),
        num_warps=NUM_WARPS,
        **pdl_options(logits.device),
    )
    return search_result.candidates


def _finish(
    best: tuple[Tensor, Tensor], V: int, ids: Tensor, which: Tensor | None = None, slots: SlotTensors | None = None
) -> None:
    """Write ids[R] and, with `slots`, advance the state of the slots which[R]."""
    entries = best[0].shape[1]
    max_entries = triton.cdiv(V, SLICE.value) + triton.cdiv(V, BLOCK.value)  # for any number of rows
    state = (which, slots.last_tokens, slots.lengths) if slots else (None, None, None)
    _sample_kernel[(len(ids),)](
        *best,
        ids,
        *state,
        entries,
        slots.padding_slot if slots else -1,
        ADVANCE=slots is not None,
        MOST=triton.next_power_of_2(max_entries),
        num_warps=1,
        **pdl_options(ids.device),
    )


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
    """Sample a token per row: logits[R, V] any float and one parameter per row -> ids[R] int64.

    See `kernels.interface.Kernels.sample`.
    """
    R, V = logits.shape
    each = torch.arange(R, device=logits.device)
    best = _best_parts(logits, (each, temperature, top_k, top_p, min_p), (seed, position, choice), True)
    ids = torch.empty(R, dtype=torch.int64, device=logits.device)
    _finish(best, V, ids)
    return ids


def sample_slots(logits: Tensor, slots: SlotTensors, which: Tensor, ids: Tensor, filtered: bool) -> None:
    """Sample logits[B, V] any float with the parameters of the slots which[B] int64 into ids[B] int64.

    See `kernels.interface.Kernels.sample_slots`.
    """
    filters = (which, slots.temperature, slots.top_k, slots.top_p, slots.min_p)
    best = _best_parts(logits, filters, (slots.seed, slots.lengths, slots.choice), filtered)
    _finish(best, logits.shape[1], ids, which, slots)
