"""Where the filters of a row end: thresholds on its logits, so that ties need no order.

A threshold is found by radix search over the logits' bit patterns, DIGIT bits a step. In a step every column adds its
weight (1 for top_k, its share of the mass for top_p) to the bin of its next bits, and the bin in which the target is
reached gives these bits of the threshold. Weights are whole numbers, whose sum has no order.
"""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.reference import sample as reference

BLOCK = 2048  # columns in a step of a pass
SLICE = 4 * BLOCK  # of one program, which first reads what the step before left for its row
NUM_WARPS = 8
SEARCHES = tl.constexpr(2)  # of top_k, of top_p
STEPS = tl.constexpr(3)
DIGIT = tl.constexpr(11)
BINS = tl.constexpr(2048)
FIRST_SHIFT = tl.constexpr(21)  # the last step's is 0: it looks at one bit again that is known by then
WHOLE = tl.constexpr(float(1 << 42))  # the weight of the largest; two million of it fit in 63 bits
GREEDY_BELOW = tl.constexpr(reference.GREEDY_BELOW)


@triton.jit
def ordered(values):
    """float32 -> int64 in [0, 2^32) in the same order, equal where the floats are equal."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)  # adding zero makes -0.0 equal to 0.0
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def load_block(logits, columns, V):
    """These columns of a row in float32; there is nothing beyond V."""
    return tl.load(logits + columns, mask=columns < V, other=float("-inf")).to(tl.float32)


@triton.jit
def is_limit(k, V):
    """Whether a top_k keeps less than everything."""
    return (k > 0) & (k < V)


@triton.jit
def largest_value(maxima, slices, SLICES: tl.constexpr):
    """The largest value of a row: of its slices' largest."""
    parts = tl.arange(0, SLICES)
    return tl.max(tl.load(maxima + parts, mask=parts < slices, other=float("-inf")), axis=0)


@triton.jit
def narrowed(tallies, found, k, p, MASS: tl.constexpr, STEP: tl.constexpr):
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
def smallest_key(tallies, found, largest, k, least, V):
    """The smallest key that min_p and top_k keep. least: the row's min_p."""
    floor = ordered(tl.where(least > 0.0, largest + tl.log(tl.where(least > 0.0, least, 1.0)), float("-inf")))
    if is_limit(k, V):
        floor = tl.maximum(floor, narrowed(tallies, found, k, 1.0, False, STEPS)[0])
    return floor


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
    found,  # [R, SEARCHES, STEPS - 1, 2] int64: what `narrowed` says after the first steps
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
    asked = is_limit(k, V)
    if MASS:
        asked = p < 1.0
    if (divisor < GREEDY_BELOW) | ~asked:
        return
    logits += row * V
    tallies += row * SEARCHES * STEPS * BINS
    found += row * SEARCHES * (STEPS - 1) * 2
    floor = tl.zeros([], tl.int64)
    largest = largest_value(maxima + row * slices, slices, SLICES)
    if MASS:
        floor = smallest_key(tallies, found, largest, k, tl.load(min_p + slot), V)
        tallies += STEPS * BINS
        found += (STEPS - 1) * 2
    threshold, missing = narrowed(tallies, found, k, p, MASS, STEP)
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
        columns = start + tl.arange(0, BLOCK)
        values = tl.div_rn(load_block(logits, columns, V), divisor)
        keys = ordered(values)
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


def weigh(logits: Tensor, filters: tuple[Tensor, ...], searched: tuple[Tensor, ...], slices: int) -> None:
    """All steps of both searches, in the rows that ask for them. filters: which, temperature, top_k, top_p and min_p;
    searched: maxima of `slices` slices of a row, tallies of zeros, found; as the kernel says.
    """
    R, V = logits.shape
    for mass in (False, True):
        for step in range(STEPS.value):
            _weigh_kernel[(R, triton.cdiv(V, SLICE))](
                logits,
                *filters,
                *searched,
                V,
                slices,
                MASS=mass,
                STEP=step,
                SLICE=SLICE,
                SLICES=triton.next_power_of_2(slices),
                BLOCK=BLOCK,
                num_warps=NUM_WARPS,
            )
