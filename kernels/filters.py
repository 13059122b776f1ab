"""Where the filters of a row end: thresholds on its logits, so that ties need no order.

A threshold is found by radix search over the logits' bit patterns, DIGIT bits a step. In a step every column adds its
weight (1 for top_k, its share of the mass for top_p) to the bin of its next bits, and the bin in which the target is
reached gives these bits of the threshold. Weights are whole numbers, whose sum has no order. The largest values of some
columns each, which are known before, tell where there is nothing to add, and that is not read.
"""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.early import early, take_turn
from kernels.reference import sample as reference

GROUP = tl.constexpr(256)  # columns the largest of which is kept
BLOCK = tl.constexpr(1024)  # columns in a step of a pass
MOST_BLOCKS = tl.constexpr(64)  # bits for the blocks of one program; it has one less, so that there is a next one
PROGRAMS = 640  # that are there at once: five on each of an H100's multiprocessors
NUM_WARPS = 4
REGISTERS = 96  # of a thread at most, which makes room for five
SEARCHES = tl.constexpr(2)  # of top_k, of top_p
STEPS = tl.constexpr(3)
DIGIT = tl.constexpr(11)
BINS = tl.constexpr(2048)
SMALLEST = tl.constexpr(-(1 << 31))  # of all keys, and no number's
FIRST_SHIFT = tl.constexpr(21)  # the last step's is 0: it looks at one bit again that is known by then
WHOLE = tl.constexpr(float(1 << 42))  # the weight of the largest; two million of it fit in 63 bits
GREEDY_BELOW = tl.constexpr(reference.GREEDY_BELOW)


@triton.jit
def ordered(values):
    """float32 -> int32 keys in the same order, equal where the floats are equal."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)  # adding zero makes -0.0 equal to 0.0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def load_block(logits, columns, V):
    """These columns of a row in float32; there is nothing beyond V."""
    return tl.load(logits + columns, mask=columns < V, other=float("-inf")).to(tl.float32)


@triton.jit
def is_limit(k, V):
    """Whether a top_k keeps less than everything."""
    return (k > 0) & (k < V)


@triton.jit
def largest_value(maxima, groups, GROUPS: tl.constexpr):
    """The largest value of a row, of its groups' largest; NaN if one of them is."""
    each = tl.arange(0, GROUPS)
    values = tl.load(maxima + each, mask=each < groups, other=float("-inf"))
    return tl.where(has_nan(values), float("nan"), tl.max(values, axis=0))


@triton.jit
def has_nan(values):
    """Whether there is one among values[N]."""
    return tl.max((values != values).to(tl.int32), axis=0) != 0


@triton.jit
def blocks_from(key, maxima, first, blocks, V, groups):
    """A bit of an int64 for each of `blocks` blocks of a row from `first` on: whether something in it reaches `key`."""
    each = tl.arange(0, MOST_BLOCKS)
    inside = (each < blocks) & ((first + each) * BLOCK < V)
    those = (first + each)[:, None] * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)[None, :]
    largest = tl.load(maxima + those, mask=inside[:, None] & (those < groups), other=float("-inf"))
    reached = tl.max((ordered(largest) >= key).to(tl.int64), axis=1)
    return tl.sum(tl.where(inside, reached << each, 0), axis=0)


@triton.jit
def load_if(wanted, logits, first, block, V):
    """The columns of the block `block` behind `first` in the logits' own type, if its bit is set in `wanted`."""
    columns = (first + block) * BLOCK + tl.arange(0, BLOCK)
    end = tl.where(((wanted >> block) & 1) != 0, V, 0)
    return tl.load(logits + columns, mask=columns < end, other=float("-inf"))


@triton.jit
def _reached(maxima, k, groups, GROUPS: tl.constexpr):
    """A key that at least k columns reach: the first 16 bits of that of the k-th largest of what is the largest in its
    group, zeros behind them. SMALLEST where there are fewer groups.
    """
    each = tl.arange(0, GROUPS)
    inside = each < groups
    keys = tl.where(inside, ordered(tl.load(maxima + each, mask=inside, other=float("-inf"))), SMALLEST)
    key = tl.full([], SMALLEST, tl.int32)
    for bit in tl.static_range(16):  # to one part in 128
        higher = key ^ (SMALLEST if bit == 0 else 1 << 31 - bit)
        key = tl.where(tl.sum((keys >= higher).to(tl.int32), axis=0) >= k, higher, key)
    return key


@triton.jit
def narrowed(tallies, found, k, p, MASS: tl.constexpr, STEP: tl.constexpr):
    """What the first STEP steps of a search found: the leading bits of the threshold's key, zeros behind them, and what
    the columns that share these bits have to weigh together for the target to be reached.

    tallies: [STEPS, BINS] and found: [STEPS - 1, 2], of this row and search.
    """
    threshold = tl.full([], SMALLEST, tl.int32)
    missing = tl.zeros([], tl.int64) + k
    if STEP > 0:
        bins = tl.arange(0, BINS)
        weights = tl.load(tallies + (STEP - 1) * BINS + bins)
        if STEP > 1:
            threshold = tl.load(found + (STEP - 2) * 2).to(tl.int32)
            missing = tl.load(found + (STEP - 2) * 2 + 1)
        elif MASS:
            # The next whole number that is not below the fraction; a target of 0 still keeps one column.
            target = tl.sum(weights, axis=0).to(tl.float64) * p.to(tl.float64)
            whole = target.to(tl.int64)
            missing = tl.maximum(whole + (whole.to(tl.float64) < target).to(tl.int64), 1)
        short = tl.cumsum(weights, axis=0) < missing
        # None reaches it where no share is a number, as all is forbidden: then nothing is filtered.
        chosen = tl.minimum(tl.sum(short.to(tl.int32), axis=0), BINS - 1)
        SHIFT: tl.constexpr = FIRST_SHIFT - DIGIT * (STEP - 1) if STEP < STEPS else 0
        threshold = ((threshold ^ SMALLEST) | (chosen ^ (BINS - 1)) << SHIFT) ^ SMALLEST
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
def _hopeless(maxima, largest, floor, p, V, groups, GROUPS: tl.constexpr):
    """A value below which all columns together weigh less than 1 - p, so that top_p's threshold is not among them: each
    less than its part of 1 - p of what the groups' largest weigh, of those that are not below `floor`.
    """
    each = tl.arange(0, GROUPS)
    values = tl.load(maxima + each, mask=each < groups, other=float("-inf"))
    weight = tl.sum(tl.where(ordered(values) >= floor, tl.exp(values - largest), 0.0), axis=0)
    return largest - (tl.log(V / ((1.0 - p) * weight)) + 1.0)


@triton.jit(do_not_specialize=["blocks"])
def _weigh_kernel(
    logits,  # [R, V] any float
    which,  # [R] int64, each row's slot
    temperature,  # [slots] float32
    top_k,  # [slots] int32
    top_p,  # [slots] float32
    min_p,  # [slots] float32
    maxima,  # [R, groups] float32
    tallies,  # [R, SEARCHES, STEPS, BINS] int64: the weight of each bin's columns, bins of large values first
    found,  # [R, SEARCHES, STEPS - 1, 2] int64: what `narrowed` says after the first steps
    V,
    groups,
    blocks,
    MASS: tl.constexpr,  # whether the search is that of top_p
    STEP: tl.constexpr,
    GROUPS: tl.constexpr,  # a power of two
    EARLY: tl.constexpr,
):
    """Adds `blocks` blocks of one row to the tally of one step of one search, where the row asks for it."""
    take_turn(EARLY)
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
    maxima += row * groups
    largest = largest_value(maxima, groups, GROUPS)
    if largest != largest:
        return
    # Columns below the floor are behind the threshold, so that it only counts where the search begins.
    lowest = tl.full([], SMALLEST, tl.int32)
    if MASS and STEP == 0:
        lowest = smallest_key(tallies, found, largest, k, tl.load(min_p + slot), V)
    elif not MASS and STEP < 2:  # by then more bits are known
        lowest = _reached(maxima, k, groups, GROUPS)
    if MASS:
        tallies += STEPS * BINS
        found += (STEPS - 1) * 2
    threshold, missing = narrowed(tallies, found, k, p, MASS, STEP)
    if STEP > 0:
        tl.store(found + (STEP - 1) * 2, threshold, mask=part == 0)
        tl.store(found + (STEP - 1) * 2 + 1, missing, mask=part == 0)
        lowest = tl.maximum(lowest, threshold)
    SHIFT: tl.constexpr = FIRST_SHIFT - DIGIT * STEP if STEP + 1 < STEPS else 0
    KNOWN: tl.constexpr = FIRST_SHIFT - DIGIT * (STEP - 1)  # the bits from here on are known
    tallies += STEP * BINS
    first = part * blocks
    read = blocks_from(lowest, maxima, first, blocks, V, groups)
    counting = read
    if MASS and STEP == 0:
        hopeless = _hopeless(maxima, largest, lowest, p, V, groups, GROUPS)
        counting &= blocks_from(ordered(hopeless), maxima, first, blocks, V, groups)
        rest = tl.zeros([BLOCK], tl.int64)
    ahead = load_if(read, logits, first, 0, V)
    for block in range(blocks):
        loaded, ahead = ahead, load_if(read, logits, first, block + 1, V)
        if (read >> block) & 1:
            values = tl.div_rn(loaded.to(tl.float32), divisor)
            keys = ordered(values)
            counted = ((first + block) * BLOCK + tl.arange(0, BLOCK) < V) & (keys >= lowest)
            if STEP > 0:
                counted = counted & ((keys >> KNOWN) == (threshold >> KNOWN))
            weights = tl.full([BLOCK], 1, tl.int64)
            if MASS:
                share = tl.exp(values - largest)
                weights = (tl.where(counted & (share > 0.0), share, 0.0) * WHOLE).to(tl.int64)
                counted = counted & (weights > 0)
                if STEP == 0:
                    rest += tl.where(values < hopeless, weights, 0)
                    counted = counted & (values >= hopeless)
            if (counting >> block) & 1:
                bins = ((keys ^ SMALLEST) >> SHIFT) & (BINS - 1) ^ (BINS - 1)
                tl.atomic_add(tallies + bins, weights, mask=counted, sem="relaxed")
    if MASS and STEP == 0:
        tl.atomic_add(tallies + BINS - 1, tl.sum(rest, axis=0), sem="relaxed")  # no number is in the bin below -inf


def programs_each(rows: int, V: int) -> int:
    """Programs for each row: fewer where there are many rows, as each reads what the step before left for its row."""
    blocks = triton.cdiv(V, BLOCK.value)
    return int(min(max(PROGRAMS // rows, triton.cdiv(blocks, MOST_BLOCKS.value - 1)), blocks))


def weigh(logits: Tensor, filters: tuple[Tensor, ...], searched: tuple[Tensor, ...]) -> None:
    """All steps of both searches, in the rows that ask for them. filters: which, temperature, top_k, top_p and min_p;
    searched: maxima, tallies of zeros, found; as the kernel says.
    """
    R, V = logits.shape
    groups, programs = searched[0].shape[1], programs_each(R, V)
    for mass in (False, True):
        for step in range(STEPS.value):
            _weigh_kernel[(R, programs)](
                logits,
                *filters,
                *searched,
                V,
                groups,
                triton.cdiv(V, programs * BLOCK.value),
                MASS=mass,
                STEP=step,
                GROUPS=triton.next_power_of_2(groups),
                num_warps=NUM_WARPS,
                maxnreg=REGISTERS,
                **early(logits.device),
            )
