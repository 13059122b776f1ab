"""The sampler: temperature, min_p, top_k, top_p, Gumbel noise, argmax. Nothing is sorted, no softmax is written.

A row is read by several programs, since one multiprocessor alone reads a vocabulary slowly; the best of what each of
them found is its token. Each filter is a threshold on the row's logits, which `kernels.filters` finds. A row's result
depends on nothing but the row.
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

from kernels.early import early, take_turn
from kernels.filters import (
    BINS,
    BLOCK,
    GREEDY_BELOW,
    GROUP,
    NUM_WARPS,
    SEARCHES,
    STEPS,
    blocks_from,
    has_nan,
    is_limit,
    largest_value,
    load_block,
    load_if,
    narrowed,
    ordered,
    programs_each,
    smallest_key,
    weigh,
)
from kernels.noise import KEY_START_A, KEY_START_B, column_hash, gumbel, row_key
from kernels.reference import sample as reference
from kernels.slots import SlotTensors

SLICE = tl.constexpr(4096)  # columns of one program, where there are no filters
BROKEN = tl.constexpr(reference.BROKEN)
NO_COLUMN = tl.constexpr(2147483647)
SLICE_WARPS = 8


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
    """The largest of scores[N] and the lowest of columns[N] that has it; NaN where one of them is."""
    top = tl.max(scores, axis=0)
    tl.store(best, tl.where(has_nan(scores), float("nan"), top))
    tl.store(best_column, tl.min(tl.where(scores == top, columns, NO_COLUMN), axis=0))


@triton.jit
def _store_nothing(best, best_column):
    """Less than any, and the token of a row in which nothing can be sampled."""
    tl.store(best, float("-inf"))
    tl.store(best_column, 0)


@triton.jit(do_not_specialize=["entries"])
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
    scores,  # [R, entries] float32
    columns,  # [R, entries] int32
    maxima,  # [R, groups] float32
    tallies,  # [R, SEARCHES, STEPS, BINS] int64
    V,
    entries,
    EARLY: tl.constexpr,
):
    """The best of one slice of one row without filters. Of another row the largest value of each of the slice's groups,
    NaN if there is one in the slice; and a share of its tallies is set to zero.
    """
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(which + row)
    part = tl.program_id(1)
    scores += row * entries + part
    columns += row * entries + part
    given = tl.load(temperature + slot)
    greedy = given < GREEDY_BELOW
    k, p = tl.load(top_k + slot), tl.load(top_p + slot)
    covered = part * SLICE + tl.arange(0, SLICE)
    values = load_block(logits + row * V, covered, V)
    if _is_plain(greedy, k, p, tl.load(min_p + slot), V):
        if not greedy:
            key_a, key_b = _noise_keys(tl.load(seed + slot), tl.load(position + slot), tl.load(choice + slot))
            # No filter looks at these values, so they may be a unit in the last place from a quotient.
            values = values * tl.div_rn(1.0, given) + gumbel(column_hash(covered, key_a, key_b))
        _store_best(scores, columns, values, covered)
    else:
        _store_nothing(scores, columns)
        GROUPS: tl.constexpr = SLICE // GROUP
        largest = tl.max(tl.reshape(tl.div_rn(values, given), [GROUPS, GROUP]), axis=1)
        largest = tl.where(has_nan(values), float("nan"), largest)
        tl.store(maxima + (row * tl.num_programs(1) + part) * GROUPS + tl.arange(0, GROUPS), largest)
        for tally in range(part, SEARCHES * STEPS, tl.num_programs(1)):
            if ((tally < STEPS) & is_limit(k, V)) | ((tally >= STEPS) & (p < 1.0)):
                bins = (row * SEARCHES * STEPS + tally) * BINS + tl.arange(0, BINS)
                tl.store(tallies + bins, tl.zeros([BINS], tl.int64))


@triton.jit(do_not_specialize=["entries", "blocks"])
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
    """The best of what the filters keep in `blocks` blocks of one row; nothing where the row has none."""
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(which + row)
    part = tl.program_id(1)
    divisor = tl.load(temperature + slot)
    k, p, least = tl.load(top_k + slot), tl.load(top_p + slot), tl.load(min_p + slot)
    out = row * entries + entries - tl.num_programs(1) + part  # behind those of slices
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
    if p < 1.0:  # found among what the others keep
        floor = narrowed(tallies + STEPS * BINS, found + (STEPS - 1) * 2, k, p, True, STEPS)[0]
    else:
        floor = smallest_key(tallies, found, largest, k, least, V)
    key_a, key_b = _noise_keys(tl.load(seed + slot), tl.load(position + slot), tl.load(choice + slot))
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_columns = tl.zeros([BLOCK], tl.int32)
    first = part * blocks
    read = blocks_from(floor, maxima, first, blocks, V, groups)
    ahead = load_if(read, logits + row * V, first, 0, V)
    for block in range(blocks):
        loaded, ahead = ahead, load_if(read, logits + row * V, first, block + 1, V)
        if (read >> block) & 1:
            covered = (first + block) * BLOCK + tl.arange(0, BLOCK)
            values = tl.div_rn(loaded.to(tl.float32), divisor)
            noisy = values + gumbel(column_hash(covered, key_a, key_b))
            better = (ordered(values) >= floor) & (noisy > best)
            best, best_columns = tl.where(better, noisy, best), tl.where(better, covered, best_columns)
    _store_best(scores, columns, best, best_columns)


@triton.jit(do_not_specialize=["entries"])
def _sample_kernel(
    scores,  # [R, entries] float32: the best of each part
    columns,  # [R, entries] int32
    ids,  # [R] int64
    which,  # [R] int64, each row's slot; this and what follows is used when ADVANCE
    last_tokens,  # [slots] int64
    lengths,  # [slots] int64
    entries,
    nobody,
    ADVANCE: tl.constexpr,
    MOST: tl.constexpr,  # a power of two
    EARLY: tl.constexpr,
):
    """The best of one row, of equal ones the lowest column; BROKEN if one is. Its slot is one token longer, unless
    it is nobody's.
    """
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, MOST)
    inside = parts < entries
    found = tl.load(scores + row * entries + parts, mask=inside, other=float("-inf"))
    where = tl.load(columns + row * entries + parts, mask=inside, other=NO_COLUMN)
    lowest = tl.min(tl.where(found == tl.max(found, axis=0), where, NO_COLUMN), axis=0)
    column = tl.where(has_nan(found), BROKEN, lowest).to(tl.int64)
    tl.store(ids + row, column)
    if ADVANCE:
        slot = tl.load(which + row)
        if slot != nobody:
            tl.store(last_tokens + slot, tl.maximum(column, 0))
            tl.store(lengths + slot, tl.load(lengths + slot) + 1)


@dataclass(frozen=True)
class Search:
    """A launched search. best: scores float32 and columns int32 [R, entries], one for each slice and, with filters, for
    each program that looks for what they keep. searched: maxima, tallies and found, as the kernels say.
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
    slices = triton.cdiv(V, SLICE.value)
    entries = slices + programs_each(R, V) if filtered else slices
    scores = torch.empty((R, entries), dtype=torch.float32, device=logits.device)
    columns = torch.empty((R, entries), dtype=torch.int32, device=logits.device)
    maxima = torch.empty((R, slices * (SLICE.value // GROUP.value)), dtype=torch.float32, device=logits.device)
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
        entries,
        num_warps=SLICE_WARPS,
        **early(logits.device),
    )
    if filtered:
        weigh(logits, filters, made.searched)
    return made


def _best_parts(
    logits: Tensor, filters: tuple[Tensor, ...], noise: tuple[Tensor, ...], filtered: bool
) -> tuple[Tensor, Tensor]:
    """-> scores float32 and columns int32 [R, entries]: the best of each part of a row."""
    R, V = logits.shape
    made = search(logits, filters, noise, filtered)
    if not filtered:
        return made.best
    groups, programs = made.searched[0].shape[1], programs_each(R, V)
    _kept_kernel[(R, programs)](
        logits,
        *filters,
        *noise,
        *made.searched,
        *made.best,
        V,
        made.best[0].shape[1],
        groups,
        triton.cdiv(V, programs * BLOCK.value),
        GROUPS=triton.next_power_of_2(groups),
        num_warps=NUM_WARPS,
        **early(logits.device),
    )
    return made.best


def _finish(
    best: tuple[Tensor, Tensor], V: int, ids: Tensor, which: Tensor | None = None, slots: SlotTensors | None = None
) -> None:
    """Writes ids[R], and with `slots` the state of those of which[R]."""
    entries = best[0].shape[1]
    most = triton.cdiv(V, SLICE.value) + triton.cdiv(V, BLOCK.value)  # of any number of rows
    state = (which, slots.last_tokens, slots.lengths) if slots else (None, None, None)
    _sample_kernel[(len(ids),)](
        *best,
        ids,
        *state,
        entries,
        slots.nobody if slots else -1,
        ADVANCE=slots is not None,
        MOST=triton.next_power_of_2(most),
        num_warps=1,
        **early(ids.device),
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
    """logits[R, V] any float and one parameter per row -> ids[R] int64; see `kernels.interface.Kernels.sample`."""
    R, V = logits.shape
    each = torch.arange(R, device=logits.device)
    best = _best_parts(logits, (each, temperature, top_k, top_p, min_p), (seed, position, choice), True)
    ids = torch.empty(R, dtype=torch.int64, device=logits.device)
    _finish(best, V, ids)
    return ids


def sample_slots(logits: Tensor, slots: SlotTensors, which: Tensor, ids: Tensor, filtered: bool) -> None:
    """logits[B, V] any float, which[B] int64, ids[B] int64; see `kernels.interface.Kernels.sample_slots`."""
    filters = (which, slots.temperature, slots.top_k, slots.top_p, slots.min_p)
    best = _best_parts(logits, filters, (slots.seed, slots.lengths, slots.choice), filtered)
    _finish(best, logits.shape[1], ids, which, slots)
