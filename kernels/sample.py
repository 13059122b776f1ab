"""The sampler: temperature, min_p, top_k, top_p, Gumbel noise, argmax. Nothing is sorted, no softmax is written.

A row is read by as many programs as it has slices, since one multiprocessor alone reads a vocabulary slowly; the best
of the slices' best is its token. Each filter is a threshold on the row's logits, so ties need no order: it is found by
radix search over their bit patterns, DIGIT bits a step. In a step every column adds its weight (1 for top_k, its share
of the mass for top_p) to the bin of its next bits, and the bin in which the target is reached gives these bits of the
threshold. Weights are whole numbers, whose sum has no order. A row's result depends on nothing but the row.
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

from kernels.noise import KEY_START_A, KEY_START_B, column_hash, gumbel, row_key
from kernels.reference import sample as reference
from kernels.slots import SlotTensors

BLOCK = 2048  # columns in a step of a pass
SLICE = 2 * BLOCK
WIDE_SLICE = 4 * BLOCK  # where a program first reads what the step before left for its row
NUM_WARPS = 8
SEARCHES = tl.constexpr(2)  # of top_k, of top_p
STEPS = tl.constexpr(3)
DIGIT = tl.constexpr(11)
BINS = tl.constexpr(2048)
FIRST_SHIFT = tl.constexpr(21)  # the last step's is 0: it looks at one bit again that is known by then
WHOLE = tl.constexpr(float(1 << 42))  # the weight of the largest; two million of it fit in 63 bits
GREEDY_BELOW = tl.constexpr(reference.GREEDY_BELOW)


@triton.jit
def _ordered(values):
    """float32 -> int64 in [0, 2^32) in the same order, equal where the floats are equal."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)  # adding zero makes -0.0 equal to 0.0
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def _load(logits, start, divisor, V, BLOCK: tl.constexpr):
    """One block of a row in float32, divided by its temperature, and the columns it covers."""
    columns = start + tl.arange(0, BLOCK)
    values = tl.load(logits + columns, mask=columns < V, other=float("-inf"))
    return tl.div_rn(values.to(tl.float32), divisor), columns


@triton.jit
def _is_limit(k, V):
    """Whether a top_k keeps less than everything."""
    return (k > 0) & (k < V)


@triton.jit
def _largest(maxima, slices, SLICES: tl.constexpr):
    """The largest value of a row: of its slices' largest."""
    parts = tl.arange(0, SLICES)
    return tl.max(tl.load(maxima + parts, mask=parts < slices, other=float("-inf")), axis=0)


@triton.jit
def _narrowed(tallies, found, k, p, MASS: tl.constexpr, STEP: tl.constexpr):
    """What the first STEP steps of a search found: the leading bits of the threshold, zeros behind them, and what the
    columns that share these bits have to weigh together for the target to be reached.

    tallies: [STEPS, BINS] and found: [STEPS - 1, 2], of this row and search.
    """
    threshold = tl.zeros([], tl.int64)
    missing = tl.zeros([], tl.int64) + k
    if STEP > 0:
        bins = tl.arange(0, BINS)
        weights = tl.load(tallies + (STEP - 1) * BINS + bins)
        if STEP > 1:
            threshold = tl.load(found + (STEP - 2) * 2)
            missing = tl.load(found + (STEP - 2) * 2 + 1)
        elif MASS:
            # The next whole number that is not below the fraction; a target of 0 still keeps one column.
            target = tl.sum(weights, axis=0).to(tl.float64) * p.to(tl.float64)
            whole = target.to(tl.int64)
            missing = tl.maximum(whole + (whole.to(tl.float64) < target).to(tl.int64), 1)
        short = tl.cumsum(weights, axis=0) < missing
        # None reaches it where a row is broken by NaN: it gets some threshold.
        chosen = tl.minimum(tl.sum(short.to(tl.int32), axis=0), BINS - 1)
        SHIFT: tl.constexpr = FIRST_SHIFT - DIGIT * (STEP - 1) if STEP < STEPS else 0
        threshold |= (chosen ^ (BINS - 1)).to(tl.int64) << SHIFT
        missing -= tl.sum(tl.where(bins < chosen, weights, 0), axis=0)
    return threshold, missing


@triton.jit
def _floor(tallies, found, largest, k, least, V):
    """The smallest key that min_p and top_k keep. least: the row's min_p."""
    floor = _ordered(tl.where(least > 0.0, largest + tl.log(tl.where(least > 0.0, least, 1.0)), float("-inf")))
    if _is_limit(k, V):
        floor = tl.maximum(floor, _narrowed(tallies, found, k, 1.0, False, STEPS)[0])
    return floor


@triton.jit
def _is_plain(greedy, k, p, least, V):
    """Whether every column of a row may be sampled, or the largest is. least: its min_p."""
    return greedy | (((k <= 0) | (k >= V)) & (p >= 1.0) & (least <= 0.0))


@triton.jit
def _noise_keys(seed, position, choice):
    """The two that a token's noise is drawn with."""
    return row_key(KEY_START_A, seed, position, choice), row_key(KEY_START_B, seed, position, choice)


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
    BLOCK: tl.constexpr,
):
    """The best of one slice of one row without filters; of another row the largest value, and a share of its tallies is
    set to zero.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(which + row)
    part = tl.program_id(1)
    first, out = part * SLICE, row * tl.num_programs(1) + part
    logits += row * V
    given = tl.load(temperature + slot)
    greedy = given < GREEDY_BELOW
    divisor = tl.where(greedy, 1.0, given)
    if _is_plain(greedy, tl.load(top_k + slot), tl.load(top_p + slot), tl.load(min_p + slot), V):
        key_a, key_b = _noise_keys(tl.load(seed + slot), tl.load(position + slot), tl.load(choice + slot))
        everything = tl.zeros([], tl.int64)
        best, column = _best(logits, first, first + SLICE, V, divisor, greedy, everything, key_a, key_b, BLOCK)
        tl.store(scores + out, best)
        tl.store(columns + out, column)
    else:
        largest = float("-inf")
        for start in range(first, first + SLICE, BLOCK):
            largest = tl.maximum(largest, tl.max(_load(logits, start, divisor, V, BLOCK)[0], axis=0))
        tl.store(maxima + out, largest)
        for tally in range(part, SEARCHES * STEPS, tl.num_programs(1)):
            bins = (row * SEARCHES * STEPS + tally) * BINS + tl.arange(0, BINS)
            tl.store(tallies + bins, tl.zeros([BINS], tl.int64))


@triton.jit
def _weigh_kernel(
    logits,  # [R, V] any float
    which,  # [R] int64, each row's slot
    temperature,  # [slots] float32
    top_k,  # [slots] int32
    top_p,  # [slots] float32
    min_p,  # [slots] float32
    maxima,  # [R, slices] float32
    tallies,  # [R, SEARCHES, STEPS, BINS] int64: the weight of each bin's columns, bins of large values first
    found,  # [R, SEARCHES, STEPS - 1, 2] int64: what `_narrowed` says after the first steps
    V,
    slices,
    MASS: tl.constexpr,  # whether the search is that of top_p
    STEP: tl.constexpr,
    SLICE: tl.constexpr,
    SLICES: tl.constexpr,  # a power of two
    BLOCK: tl.constexpr,
):
    """Adds the columns of one slice of one row to the tally of one step of one search, where the row asks for it."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(which + row)
    part = tl.program_id(1)
    divisor = tl.load(temperature + slot)
    k, p = tl.load(top_k + slot), tl.load(top_p + slot)
    asked = _is_limit(k, V)
    if MASS:
        asked = p < 1.0
    if (divisor < GREEDY_BELOW) | ~asked:
        return
    logits += row * V
    tallies += row * SEARCHES * STEPS * BINS
    found += row * SEARCHES * (STEPS - 1) * 2
    floor = tl.zeros([], tl.int64)
    largest = _largest(maxima + row * slices, slices, SLICES)
    if MASS:
        floor = _floor(tallies, found, largest, k, tl.load(min_p + slot), V)
        tallies += STEPS * BINS
        found += (STEPS - 1) * 2
    threshold, missing = _narrowed(tallies, found, k, p, MASS, STEP)
    if STEP > 0:
        tl.store(found + (STEP - 1) * 2, threshold, mask=part == 0)
        tl.store(found + (STEP - 1) * 2 + 1, missing, mask=part == 0)
    SHIFT: tl.constexpr = FIRST_SHIFT - DIGIT * STEP if STEP + 1 < STEPS else 0
    KNOWN: tl.constexpr = FIRST_SHIFT - DIGIT * (STEP - 1)  # the bits from here on are known
    if MASS and STEP == 0:
        # Columns this far below the largest weigh less than 1 - p together, so the threshold is not among them.
        hopeless = largest - (tl.log(V / (1.0 - p)) + 1.0)
        rest = tl.zeros([], tl.int64)
    tallies += STEP * BINS
    for start in range(part * SLICE, tl.minimum(part * SLICE + SLICE, V), BLOCK):
        values, columns = _load(logits, start, divisor, V, BLOCK)
        keys = _ordered(values)
        counted = (columns < V) & (keys >= floor)
        if STEP > 0:
            counted = counted & ((keys >> KNOWN) == (threshold >> KNOWN))
        weights = tl.full([BLOCK], 1, tl.int64)
        if MASS:
            share = tl.exp(values - largest)
            counted = counted & (share > 0.0)  # and so not NaN
            weights = (tl.where(counted, share, 0.0) * WHOLE).to(tl.int64)
            if STEP == 0:
                rest += tl.sum(tl.where(values < hopeless, weights, 0), axis=0)
                counted = counted & (values >= hopeless)
        bins = (keys >> SHIFT) & (BINS - 1) ^ (BINS - 1)
        tl.atomic_add(tallies + bins, weights, mask=counted, sem="relaxed")
    if MASS and STEP == 0:
        tl.atomic_add(tallies + BINS - 1, rest, sem="relaxed")  # the bin below -inf, which no number is in


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
    BLOCK: tl.constexpr,
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
    floor = _floor(tallies, found, _largest(maxima + row * slices, slices, SLICES), k, least, V)
    if p < 1.0:
        nucleus = _narrowed(tallies + STEPS * BINS, found + (STEPS - 1) * 2, k, p, True, STEPS)[0]
        floor = tl.maximum(floor, nucleus)
    key_a, key_b = _noise_keys(tl.load(seed + slot), tl.load(position + slot), tl.load(choice + slot))
    first = part * SLICE
    best, column = _best(logits + row * V, first, first + SLICE, V, divisor, False, floor, key_a, key_b, BLOCK)
    tl.store(scores + row * slices + part, best)
    tl.store(columns + row * slices + part, column)


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
    """The best of one row, of equal ones the lowest column. Its slot is one token longer, unless it is nobody's."""
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, SLICES)
    inside = parts < slices
    found = tl.load(scores + row * slices + parts, mask=inside, other=float("-inf"))
    where = tl.load(columns + row * slices + parts, mask=inside, other=2147483647)
    top = tl.max(found, axis=0)
    column = tl.min(tl.where(found == top, where, 2147483647), axis=0).to(tl.int64)
    tl.store(ids + row, column)
    if ADVANCE:
        slot = tl.load(which + row)
        if slot != nobody:
            tl.store(last_tokens + slot, column)
            tl.store(lengths + slot, tl.load(lengths + slot) + 1)


@dataclass(frozen=True)
class Search:
    """A launched search. best: what there is of each slice, scores float32 and columns int32 [R, slices]. searched:
    maxima, tallies and found, as the kernels say.
    """

    best: tuple[Tensor, Tensor]
    searched: tuple[Tensor, Tensor, Tensor]


def search(logits: Tensor, filters: tuple[Tensor, ...], noise: tuple[Tensor, ...]) -> Search:
    """Samples the slices of rows without filters and finds the thresholds of the others. filters: which, temperature,
    top_k, top_p and min_p; noise: seed, position and choice; as the kernels say.

    What is launched does not depend on what the rows ask for, which only the device knows: a program whose row has no
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
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    for mass in (False, True):
        for step in range(STEPS.value):
            _weigh_kernel[(R, triton.cdiv(V, WIDE_SLICE))](
                logits,
                *filters,
                *made.searched,
                V,
                slices,
                MASS=mass,
                STEP=step,
                SLICE=WIDE_SLICE,
                SLICES=triton.next_power_of_2(slices),
                BLOCK=BLOCK,
                num_warps=NUM_WARPS,
            )
    return made


def _best_slices(logits: Tensor, filters: tuple[Tensor, ...], noise: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """-> scores float32 and columns int32 [R, slices]: the best that each slice keeps."""
    R, V = logits.shape
    made = search(logits, filters, noise)
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
        BLOCK=BLOCK,
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
    scores, columns = _best_slices(logits, (each, temperature, top_k, top_p, min_p), (seed, position, choice))
    ids = torch.empty(R, dtype=torch.int64, device=logits.device)
    slices = scores.shape[1]
    most = triton.next_power_of_2(slices)
    _sample_kernel[(R,)](scores, columns, ids, None, None, None, slices, -1, ADVANCE=False, SLICES=most, num_warps=1)
    return ids


def sample_slots(logits: Tensor, slots: SlotTensors, which: Tensor, ids: Tensor) -> None:
    """logits[B, V] any float, which[B] int64, ids[B] int64; see `kernels.interface.Kernels.sample_slots`."""
    filters = (which, slots.temperature, slots.top_k, slots.top_p, slots.min_p)
    best = _best_slices(logits, filters, (slots.seed, slots.lengths, slots.choice))
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
