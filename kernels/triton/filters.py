"""Sampling filters as thresholds on a row's logits, so that ties need no order.

A threshold is found by radix search over the logits' bit patterns, DIGIT bits a step. In each step every column adds
its weight (1 for top_k, its share of the mass for top_p) to the bin of its next bits; the bin in which the target is
reached gives these bits of the threshold. Weights are integers, so the sum does not depend on the order. The maxima of
column groups, computed beforehand, show which blocks cannot contribute; those are not read.
"""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference import sample as reference
from kernels.slots import SlotRecord, field_offset
from kernels.triton.pdl import pdl_options, wait_for_previous

# Bytes of a slot's record, and the positions of the fields that the sampler reads.
RECORD_BYTES = tl.constexpr(SlotRecord.itemsize)
SEED, CHOICE = tl.constexpr(field_offset("seed")), tl.constexpr(field_offset("choice"))
TEMPERATURE = tl.constexpr(field_offset("temperature"))
TOP_K, TOP_P, MIN_P, TOP_N_SIGMA = (
    tl.constexpr(field_offset(name)) for name in ("top_k", "top_p", "min_p", "top_n_sigma")
)

SLICE = tl.constexpr(4096)  # columns that one program summarises before the search
GROUP = tl.constexpr(256)  # columns per stored maximum
BLOCK = tl.constexpr(1024)  # columns read at a time
MAX_BLOCKS = tl.constexpr(64)  # block bits of one program; it uses one less, so that the next block always has a bit
PROGRAMS = 640  # concurrent programs: five on each multiprocessor of an H100
NUM_WARPS = 4
REGISTERS = 96  # maximum per thread, so that five programs fit
SEARCHES = tl.constexpr(2)  # top_k and top_p
STEPS = tl.constexpr(3)
DIGIT = tl.constexpr(11)
BINS = tl.constexpr(2048)
MIN_KEY = tl.constexpr(-(1 << 31))  # below the key of every number
FIRST_SHIFT = tl.constexpr(21)  # the last step has shift 0 and re-reads one bit that is already known
MAX_WEIGHT = tl.constexpr(float(1 << 42))  # weight of the largest column; two million of them fit in 63 bits
GREEDY_BELOW = tl.constexpr(reference.GREEDY_BELOW)

# Scratch memory of a row, in int64 words: the tallies [SEARCHES, STEPS, BINS], which are the weights of each bin's
# columns, bins of large values first; the results [SEARCHES, STEPS - 1, 2] of `search_state` after the first steps; the
# largest value of each group of columns, [groups] float32; and the moments of each slice, [groups / 16, 4] float64.
FOUND = tl.constexpr(SEARCHES.value * STEPS.value * BINS.value)
MAXIMA = tl.constexpr(FOUND.value + SEARCHES.value * (STEPS.value - 1) * 2)


@triton.jit
def load_field(record, OFFSET: tl.constexpr, DTYPE: tl.constexpr):
    """Load a field of the record at address `record`."""
    return tl.load((record + OFFSET).to(tl.pointer_type(DTYPE)))


@triton.jit
def row_scratch(scratch, row, groups):
    """Return the address of a row's scratch memory."""
    return scratch + row * (MAXIMA + groups // 2 + groups // 4)


@triton.jit
def group_maxima(scratch):
    """Return the address of the group maxima in a row's scratch memory."""
    return (scratch + MAXIMA).to(tl.pointer_type(tl.float32))


@triton.jit
def order_key(values):
    """Map float32 values to int32 keys in the same order, equal where the floats are equal."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)  # adding zero makes -0.0 equal to 0.0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def slice_moments(scratch, groups):
    """Return the address of the moments of slices in a row's scratch memory."""
    tl.static_assert(SLICE == 16 * GROUP)
    return (scratch + MAXIMA + groups // 2).to(tl.pointer_type(tl.float64))


@triton.jit
def load_block(logits, columns, V):
    """Load columns of a row as float32, -inf from column V on."""
    return tl.load(logits + columns, mask=columns < V, other=float("-inf")).to(tl.float32)


@triton.jit
def limits_top_k(record, V):
    """Return whether the row's top_k removes any of V columns."""
    k = load_field(record, TOP_K, tl.int32)
    return (k > 0) & (k < V)


@triton.jit
def limits_top_p(record):
    """Return whether the row has a top_p."""
    return load_field(record, TOP_P, tl.float32) < 1.0


@triton.jit
def limits_sigma(record):
    """Return whether the row has a top_n_sigma."""
    return load_field(record, TOP_N_SIGMA, tl.float32) > 0.0


@triton.jit
def is_plain(record, V):
    """Return whether the row is greedy or has no filter."""
    greedy = load_field(record, TEMPERATURE, tl.float32) < GREEDY_BELOW
    filtered = limits_top_k(record, V) | limits_top_p(record) | (load_field(record, MIN_P, tl.float32) > 0.0)
    return greedy | ~(filtered | limits_sigma(record))


@triton.jit
def _store_moments(scaled, moments):
    """Store the number of finite values in scaled[N], their mean, and the sum of their squared deviations from it."""
    finite = (scaled > float("-inf")) & (scaled < float("inf"))
    values = tl.where(finite, scaled, 0.0).to(tl.float64)
    count = tl.sum(finite.to(tl.int32), axis=0).to(tl.float64)
    mean = tl.sum(values, axis=0) / tl.maximum(count, 1.0)
    deviations = tl.where(finite, values - mean, 0.0)
    tl.store(moments, count)
    tl.store(moments + 1, mean)
    tl.store(moments + 2, tl.sum(deviations * deviations, axis=0))


@triton.jit
def _sigma_threshold(record, scratch, largest, groups, GROUPS: tl.constexpr):
    """Return the largest value minus top_n_sigma standard deviations, computed in float64 from the slices' moments."""
    slices = tl.arange(0, GROUPS * GROUP // SLICE)
    moments, inside = slice_moments(scratch, groups) + slices * 4, slices < groups * GROUP // SLICE
    counts = tl.load(moments, mask=inside, other=0.0)
    means = tl.load(moments + 1, mask=inside, other=0.0)
    count = tl.maximum(tl.sum(counts, axis=0), 1.0)
    shifts = means - tl.sum(counts * means, axis=0) / count
    squares = tl.load(moments + 2, mask=inside, other=0.0) + counts * shifts * shifts
    sigma = tl.sqrt(tl.sum(squares, axis=0) / count)
    n = load_field(record, TOP_N_SIGMA, tl.float32).to(tl.float64)
    return (largest.to(tl.float64) - n * sigma).to(tl.float32)


@triton.jit
def summarise_slice(values, record, scratch, V):
    """Store the largest scaled value of each group of values[SLICE], NaN if the slice contains one, and its moments if
    the row needs them; zero a share of the tallies of the searches that the row needs.
    """
    part, parts = tl.program_id(1), tl.num_programs(1)
    GROUPS: tl.constexpr = SLICE // GROUP
    scaled = tl.div_rn(values, load_field(record, TEMPERATURE, tl.float32))
    largest = tl.max(tl.reshape(scaled, [GROUPS, GROUP]), axis=1)
    largest = tl.where(has_nan(values), float("nan"), largest)
    tl.store(group_maxima(scratch) + part * GROUPS + tl.arange(0, GROUPS), largest)
    if limits_sigma(record):
        _store_moments(scaled, slice_moments(scratch, parts * GROUPS) + part * 4)
    has_top_k, has_top_p = limits_top_k(record, V), limits_top_p(record)
    for tally in range(part, SEARCHES * STEPS, parts):
        if ((tally < STEPS) & has_top_k) | ((tally >= STEPS) & has_top_p):
            tl.store(scratch + tally * BINS + tl.arange(0, BINS), tl.zeros([BINS], tl.int64))


@triton.jit
def largest_value(scratch, groups, GROUPS: tl.constexpr):
    """Return the largest value of a row, from its group maxima; NaN if one of them is NaN."""
    each = tl.arange(0, GROUPS)
    values = tl.load(group_maxima(scratch) + each, mask=each < groups, other=float("-inf"))
    return tl.where(has_nan(values), float("nan"), tl.max(values, axis=0))


@triton.jit
def has_nan(values):
    """Return whether values[N] contains a NaN."""
    return tl.max((values != values).to(tl.int32), axis=0) != 0


@triton.jit
def block_mask(key, scratch, first, blocks, V, groups):
    """Return an int64 bit mask of `blocks` blocks of a row from block `first` on: set if a column reaches `key`."""
    each = tl.arange(0, MAX_BLOCKS)
    inside = (each < blocks) & ((first + each) * BLOCK < V)
    group_ids = (first + each)[:, None] * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)[None, :]
    largest = tl.load(
        group_maxima(scratch) + group_ids, mask=inside[:, None] & (group_ids < groups), other=float("-inf")
    )
    reached = tl.max((order_key(largest) >= key).to(tl.int64), axis=1)
    return tl.sum(tl.where(inside, reached << each, 0), axis=0)


@triton.jit
def load_block_if(block_mask, logits, first, block, V):
    """Load block `first + block` in the logits' dtype if bit `block` is set in `block_mask`, else -inf."""
    columns = (first + block) * BLOCK + tl.arange(0, BLOCK)
    end = tl.where(((block_mask >> block) & 1) != 0, V, 0)
    return tl.load(logits + columns, mask=columns < end, other=float("-inf"))


@triton.jit
def _min_top_k_key(scratch, k, groups, GROUPS: tl.constexpr):
    """Return a key that at least k columns reach: the first 16 bits of the k-th largest group maximum's key.

    The other bits are zeros. MIN_KEY if there are fewer than k groups.
    """
    each = tl.arange(0, GROUPS)
    inside = each < groups
    keys = tl.where(inside, order_key(tl.load(group_maxima(scratch) + each, mask=inside, other=float("-inf"))), MIN_KEY)
    key = tl.full([], MIN_KEY, tl.int32)
    for bit in tl.static_range(16):  # precise to one part in 128
        higher = key ^ (MIN_KEY if bit == 0 else 1 << 31 - bit)
        key = tl.where(tl.sum((keys >= higher).to(tl.int32), axis=0) >= k, higher, key)
    return key


@triton.jit
def search_state(record, scratch, TOP_P_SEARCH: tl.constexpr, STEP: tl.constexpr):
    """Return the result of the first STEP steps of a row's search: the leading bits of the threshold's key (then zeros)
    and the weight that the columns sharing these bits must contribute to reach the target.
    """
    tallies, found = scratch, scratch + FOUND
    if TOP_P_SEARCH:
        tallies, found = tallies + STEPS * BINS, found + (STEPS - 1) * 2
    threshold = tl.full([], MIN_KEY, tl.int32)
    missing = tl.zeros([], tl.int64) + load_field(record, TOP_K, tl.int32)
    if STEP > 0:
        bins = tl.arange(0, BINS)
        weights = tl.load(tallies + (STEP - 1) * BINS + bins)
        if STEP > 1:
            threshold = tl.load(found + (STEP - 2) * 2).to(tl.int32)
            missing = tl.load(found + (STEP - 2) * 2 + 1)
        elif TOP_P_SEARCH:
            # Round the target up; a target of 0 still keeps one column.
            p = load_field(record, TOP_P, tl.float32).to(tl.float64)
            target = tl.sum(weights, axis=0).to(tl.float64) * p
            whole = target.to(tl.int64)
            missing = tl.maximum(whole + (whole.to(tl.float64) < target).to(tl.int64), 1)
        short = tl.cumsum(weights, axis=0) < missing
        # If every logit is -inf, no share is a number and no bin reaches the target: nothing is filtered.
        chosen = tl.minimum(tl.sum(short.to(tl.int32), axis=0), BINS - 1)
        SHIFT: tl.constexpr = FIRST_SHIFT - DIGIT * (STEP - 1) if STEP < STEPS else 0
        threshold = ((threshold ^ MIN_KEY) | (chosen ^ (BINS - 1)) << SHIFT) ^ MIN_KEY
        missing -= tl.sum(tl.where(bins < chosen, weights, 0), axis=0)
    return threshold, missing


@triton.jit
def smallest_key(record, scratch, largest, V, groups, GROUPS: tl.constexpr):
    """Return the smallest key that the filters before top_p keep."""
    least = load_field(record, MIN_P, tl.float32)
    floor = order_key(tl.where(least > 0.0, largest + tl.log(tl.where(least > 0.0, least, 1.0)), float("-inf")))
    if limits_sigma(record):
        floor = tl.maximum(floor, order_key(_sigma_threshold(record, scratch, largest, groups, GROUPS)))
    if limits_top_k(record, V):
        floor = tl.maximum(floor, search_state(record, scratch, False, STEPS)[0])
    return floor


@triton.jit
def smallest_kept_key(record, scratch, largest, V, groups, GROUPS: tl.constexpr):
    """Return the smallest key that all filters keep."""
    if limits_top_p(record):  # the top_p threshold is computed among the columns that the other filters keep
        floor = search_state(record, scratch, True, STEPS)[0]
    else:
        floor = smallest_key(record, scratch, largest, V, groups, GROUPS)
    return floor


@triton.jit
def _top_p_lower_bound(scratch, largest, floor, p, V, groups, GROUPS: tl.constexpr):
    """Return a lower bound of the top_p threshold: all columns below it together weigh less than 1 - p.

    Each of the V columns below it weighs less than a V-th of 1 - p of the weight of the group maxima >= `floor`.
    """
    each = tl.arange(0, GROUPS)
    values = tl.load(group_maxima(scratch) + each, mask=each < groups, other=float("-inf"))
    weight = tl.sum(tl.where(order_key(values) >= floor, tl.exp(values - largest), 0.0), axis=0)
    return largest - (tl.log(V / ((1.0 - p) * weight)) + 1.0)


@triton.jit(do_not_specialize=["blocks"])
def _weigh_kernel(
    logits,  # [R, V] any float
    records,  # [slots, RECORD_BYTES] uint8
    slot_ids,  # [R] int64, slot of each row
    scratch,  # [R, words] int64
    V,
    groups,
    blocks,
    TOP_P_SEARCH: tl.constexpr,  # False: the search of top_k
    STEP: tl.constexpr,
    GROUPS: tl.constexpr,  # a power of two
    USE_PDL: tl.constexpr,
):
    """Add `blocks` blocks of one row to the tally of one search step, if the row uses that filter."""
    wait_for_previous(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    record = records + tl.load(slot_ids + row) * RECORD_BYTES
    divisor = load_field(record, TEMPERATURE, tl.float32)
    if TOP_P_SEARCH:
        is_active = limits_top_p(record)
    else:
        is_active = limits_top_k(record, V)
    if (divisor < GREEDY_BELOW) | ~is_active:
        return
    logits += row * V
    scratch = row_scratch(scratch, row, groups)
    largest = largest_value(scratch, groups, GROUPS)
    if largest != largest:
        return
    # Columns below the floor sort after the threshold, so the floor matters only in the first step.
    lowest = tl.full([], MIN_KEY, tl.int32)
    if TOP_P_SEARCH and STEP == 0:
        lowest = smallest_key(record, scratch, largest, V, groups, GROUPS)
    elif not TOP_P_SEARCH and STEP < 2:  # later steps know more bits
        lowest = _min_top_k_key(scratch, load_field(record, TOP_K, tl.int32), groups, GROUPS)
    threshold, missing = search_state(record, scratch, TOP_P_SEARCH, STEP)
    SEARCH: tl.constexpr = 1 if TOP_P_SEARCH else 0
    if STEP > 0:
        found = scratch + FOUND + (SEARCH * (STEPS - 1) + STEP - 1) * 2
        tl.store(found, threshold, mask=part == 0)
        tl.store(found + 1, missing, mask=part == 0)
        lowest = tl.maximum(lowest, threshold)
    SHIFT: tl.constexpr = FIRST_SHIFT - DIGIT * STEP if STEP + 1 < STEPS else 0
    KNOWN: tl.constexpr = FIRST_SHIFT - DIGIT * (STEP - 1)  # bits from here upwards are known
    tallies = scratch + (SEARCH * STEPS + STEP) * BINS
    first = part * blocks
    read = block_mask(lowest, scratch, first, blocks, V, groups)
    counting = read
    if TOP_P_SEARCH and STEP == 0:
        p = load_field(record, TOP_P, tl.float32)
        lower_bound = _top_p_lower_bound(scratch, largest, lowest, p, V, groups, GROUPS)
        counting &= block_mask(order_key(lower_bound), scratch, first, blocks, V, groups)
        rest = tl.zeros([BLOCK], tl.int64)
    ahead = load_block_if(read, logits, first, 0, V)
    for block in range(blocks):
        loaded, ahead = ahead, load_block_if(read, logits, first, block + 1, V)
        if (read >> block) & 1:
            values = tl.div_rn(loaded.to(tl.float32), divisor)
            keys = order_key(values)
            counted = ((first + block) * BLOCK + tl.arange(0, BLOCK) < V) & (keys >= lowest)
            if STEP > 0:
                counted = counted & ((keys >> KNOWN) == (threshold >> KNOWN))
            weights = tl.full([BLOCK], 1, tl.int64)
            if TOP_P_SEARCH:
                share = tl.exp(values - largest)
                weights = (tl.where(counted & (share > 0.0), share, 0.0) * MAX_WEIGHT).to(tl.int64)
                counted = counted & (weights > 0)
                if STEP == 0:
                    rest += tl.where(values < lower_bound, weights, 0)
                    counted = counted & (values >= lower_bound)
            if (counting >> block) & 1:
                bins = ((keys ^ MIN_KEY) >> SHIFT) & (BINS - 1) ^ (BINS - 1)
                tl.atomic_add(tallies + bins, weights, mask=counted, sem="relaxed")
    if TOP_P_SEARCH and STEP == 0:
        tl.atomic_add(tallies + BINS - 1, tl.sum(rest, axis=0), sem="relaxed")  # this bin, below -inf, holds no number


def programs_per_row(rows: int, V: int) -> int:
    """Return the programs per row: fewer for many rows, as each program reads its row's tallies of the last step."""
    blocks = triton.cdiv(V, BLOCK.value)
    return int(min(max(PROGRAMS // rows, triton.cdiv(blocks, MAX_BLOCKS.value - 1)), blocks))


def new_scratch(rows: int, V: int, device: torch.device) -> Tensor:
    """Return uninitialised scratch memory, [rows, words] int64."""
    groups = group_count(V)
    words = MAXIMA.value + groups // 2 + groups // 4
    return torch.empty((rows, words), dtype=torch.int64, device=device)


def group_count(V: int) -> int:
    """Return the number of groups in a row's whole slices."""
    return int(triton.cdiv(V, SLICE.value) * (SLICE.value // GROUP.value))


def weigh(logits: Tensor, records: Tensor, slot_ids: Tensor, scratch: Tensor) -> None:
    """Run all steps of both searches for the rows that use these filters.

    logits[R, V] of the slots slot_ids[R]; records: those of all slots, as in `_weigh_kernel`. `summarise_slice` has
    filled the scratch memory.
    """
    R, V = logits.shape
    groups, programs = group_count(V), programs_per_row(R, V)
    for is_top_p in (False, True):
        for step in range(STEPS.value):
            _weigh_kernel[(R, programs)](
                logits,
                records,
                slot_ids,
                scratch,
                V,
                groups,
                triton.cdiv(V, programs * BLOCK.value),
                TOP_P_SEARCH=is_top_p,
                STEP=step,
                GROUPS=triton.next_power_of_2(groups),
                num_warps=NUM_WARPS,
                maxnreg=REGISTERS,
                **pdl_options(logits.device),
            )
