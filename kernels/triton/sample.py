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
from kernels.slots import DraftRows, SamplingTensors, SlotTensors
from kernels.triton.filters import (
    BLOCK,
    CHOICE,
    GREEDY_BELOW,
    NUM_WARPS,
    RECORD_BYTES,
    SEED,
    SLICE,
    TEMPERATURE,
    block_mask,
    group_count,
    has_nan,
    is_plain,
    largest_value,
    load_block,
    load_block_if,
    load_field,
    new_scratch,
    order_key,
    programs_per_row,
    row_scratch,
    smallest_kept_key,
    summarise_slice,
    weigh,
)
from kernels.triton.noise import KEY_START_A, KEY_START_B, column_hash, gumbel, row_key
from kernels.triton.pdl import pdl_options, wait_for_previous

NAN_TOKEN = tl.constexpr(reference.NAN_TOKEN)
NO_COLUMN = tl.constexpr(2147483647)
SLICE_WARPS = 8
SLICE_REGISTERS = 64  # maximum per thread, so that four programs fit on a multiprocessor


@triton.jit
def _noise_keys(record, position):
    """Return the two uint32 keys of a row's noise."""
    seed, choice = load_field(record, SEED, tl.int64), load_field(record, CHOICE, tl.int64)
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
    records,  # [slots, RECORD_BYTES] uint8
    slot_ids,  # [R] int64, slot of each row
    positions,  # [slots] int64, of the new token
    scores,  # [R, entries] float32
    columns,  # [R, entries] int32
    scratch,  # [R, words] int64
    V,
    entries,
    groups,
    USE_PDL: tl.constexpr,
):
    """Process one slice of one row.

    Without filters, store the slice's best score and column. With filters, summarise the slice for the search.
    """
    wait_for_previous(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ids + row)
    record = records + slot * RECORD_BYTES
    part = tl.program_id(1)
    scores += row * entries + part
    columns += row * entries + part
    covered = part * SLICE + tl.arange(0, SLICE)
    values = load_block(logits + row * V, covered, V)
    if is_plain(record, V):
        divisor = load_field(record, TEMPERATURE, tl.float32)
        if divisor >= GREEDY_BELOW:
            key_a, key_b = _noise_keys(record, tl.load(positions + slot))
            # No filter compares these values, so an error of one unit in the last place is acceptable.
            values = values * tl.div_rn(1.0, divisor) + gumbel(column_hash(covered, key_a, key_b))
        _store_best(scores, columns, values, covered)
    else:
        _store_nothing(scores, columns)
        summarise_slice(values, record, row_scratch(scratch, row, groups), V)


@triton.jit(do_not_specialize=["entries", "blocks"])
def _kept_kernel(
    logits,  # [R, V] any float
    records,  # [slots, RECORD_BYTES] uint8
    slot_ids,  # [R] int64, slot of each row
    positions,  # [slots] int64, of the new token
    scratch,  # [R, words] int64
    scores,  # [R, entries] float32
    columns,  # [R, entries] int32
    V,
    entries,
    groups,
    blocks,
    GROUPS: tl.constexpr,  # a power of two
    USE_PDL: tl.constexpr,
):
    """Store the best candidate that the filters keep in `blocks` blocks of one row; -inf for a row without filters."""
    wait_for_previous(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ids + row)
    record = records + slot * RECORD_BYTES
    part = tl.program_id(1)
    out = row * entries + entries - tl.num_programs(1) + part  # after the entries of slices
    scores += out
    columns += out
    if is_plain(record, V):
        _store_nothing(scores, columns)
        return
    scratch = row_scratch(scratch, row, groups)
    largest = largest_value(scratch, groups, GROUPS)
    if largest != largest:
        tl.store(scores, largest)
        return
    floor = smallest_kept_key(record, scratch, largest, V, groups, GROUPS)
    divisor = load_field(record, TEMPERATURE, tl.float32)
    key_a, key_b = _noise_keys(record, tl.load(positions + slot))
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_columns = tl.zeros([BLOCK], tl.int32)
    first = part * blocks
    read = block_mask(floor, scratch, first, blocks, V, groups)
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
    slot_ids,  # [R] int64, slot of each row; used with ADVANCE, like the next three
    last_tokens,  # [slots] int64
    lengths,  # [slots] int64
    text,  # [slots, MAX_TEXT] int32
    entries,
    padding_slot,
    ADVANCE: tl.constexpr,
    MAX_TEXT: tl.constexpr,  # 0: there is no `text`
    MAX_ENTRIES: tl.constexpr,  # a power of two
    USE_PDL: tl.constexpr,
):
    """Store the token of one row: the best entry, the lowest column among equals, NAN_TOKEN if an entry is NaN.

    With ADVANCE, append the token to the row's slot unless the row is padding.
    """
    wait_for_previous(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, MAX_ENTRIES)
    inside = parts < entries
    found = tl.load(scores + row * entries + parts, mask=inside, other=float("-inf"))
    candidates = tl.load(columns + row * entries + parts, mask=inside, other=NO_COLUMN)
    lowest = tl.min(tl.where(found == tl.max(found, axis=0), candidates, NO_COLUMN), axis=0)
    column = tl.where(has_nan(found), NAN_TOKEN, lowest).to(tl.int64)
    tl.store(ids + row, column)
    if ADVANCE:
        slot = tl.load(slot_ids + row)
        if slot != padding_slot:
            length = tl.load(lengths + slot)
            token = tl.maximum(column, 0)
            tl.store(last_tokens + slot, token)
            tl.store(lengths + slot, length + 1)
            if MAX_TEXT > 0:
                tl.store(text + slot * MAX_TEXT + length, token.to(tl.int32), mask=length < MAX_TEXT)


@triton.jit(do_not_specialize=["rows"])
def _accept_kernel(
    ids,  # [B] int64
    slot_ids,  # [B] int64, slot of each row
    offsets,  # [B] int64, drafts before each row
    drafts,  # [B] int64, read by each row with an offset
    last_tokens,  # [slots] int64
    lengths,  # [slots] int64
    text,  # [slots, MAX_TEXT] int32
    rows,
    padding_slot,
    MAX_TEXT: tl.constexpr,  # 0: there is no `text`
    MAX_ROWS: tl.constexpr,  # a power of two
    USE_PDL: tl.constexpr,
):
    """Advance the slot of a row without an offset by its tokens that count, see `kernels.reference.accept`."""
    wait_for_previous(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ids + row)
    if (tl.load(offsets + row) == 0) & (slot != padding_slot):
        ahead = tl.arange(0, MAX_ROWS)
        at = row + ahead
        is_own = (
            tl.load(offsets + at, mask=at < rows, other=-1) == ahead
        )  # another slot's row there has fewer before it
        tokens = tl.load(ids + at, mask=is_own, other=NAN_TOKEN)
        reads = is_own & (ahead > 0)
        read = tl.load(drafts + at, mask=reads, other=0)
        is_right = (read >= 0) & (read == tl.load(ids + at - 1, mask=reads, other=0))
        is_wrong = (ahead > 0) & ~(is_own & is_right & (tokens >= 0))
        count = tl.min(tl.where(is_wrong, ahead, MAX_ROWS), axis=0)
        last = tl.sum(tl.where(ahead == count - 1, tokens, 0), axis=0)
        length = tl.load(lengths + slot)
        tl.store(last_tokens + slot, tl.maximum(last, 0))
        tl.store(lengths + slot, length + count)
        if MAX_TEXT > 0:
            stored = (ahead < count) & (length + ahead < MAX_TEXT)
            tl.store(text + slot * MAX_TEXT + length + ahead, tl.maximum(tokens, 0).to(tl.int32), mask=stored)


@dataclass(frozen=True, slots=True)
class SamplerSearch:
    """Buffers of a launched search.

    scores float32 and columns int32, both [R, entries]: one candidate per slice and, with filters, one per program of
    `_kept_kernel`. scratch: as in `kernels.triton.filters`.
    """

    scores: Tensor
    columns: Tensor
    scratch: Tensor


def launch_search(logits: Tensor, slots: SamplingTensors, slot_ids: Tensor, filtered: bool) -> SamplerSearch:
    """Sample the slices of rows without filters and, if `filtered`, find the thresholds of the other rows.

    logits[R, V] of the slots slot_ids[R]. The launches do not depend on the slots' parameters, which are on the device;
    unneeded programs return at once.
    """
    R, V = logits.shape
    slices = triton.cdiv(V, SLICE.value)
    entries = slices + programs_per_row(R, V) if filtered else slices
    search = SamplerSearch(
        torch.empty((R, entries), dtype=torch.float32, device=logits.device),
        torch.empty((R, entries), dtype=torch.int32, device=logits.device),
        new_scratch(R, V, logits.device),
    )
    _slice_kernel[(R, slices)](
        logits,
        slots.records,
        slot_ids,
        slots.positions,
        search.scores,
        search.columns,
        search.scratch,
        V,
        entries,
        group_count(V),
        num_warps=SLICE_WARPS,
        maxnreg=SLICE_REGISTERS,
        **pdl_options(logits.device),
    )
    if filtered:
        weigh(logits, slots.records, slot_ids, search.scratch)
    return search


def _best_parts(logits: Tensor, slots: SamplingTensors, slot_ids: Tensor, filtered: bool) -> SamplerSearch:
    """Return the best candidate of each part of a row."""
    R, V = logits.shape
    search = launch_search(logits, slots, slot_ids, filtered)
    if not filtered:
        return search
    groups, programs = group_count(V), programs_per_row(R, V)
    _kept_kernel[(R, programs)](
        logits,
        slots.records,
        slot_ids,
        slots.positions,
        search.scratch,
        search.scores,
        search.columns,
        V,
        search.scores.shape[1],
        groups,
        triton.cdiv(V, programs * BLOCK.value),
        GROUPS=triton.next_power_of_2(groups),
        num_warps=NUM_WARPS,
        **pdl_options(logits.device),
    )
    return search


def _finish(
    search: SamplerSearch, V: int, ids: Tensor, slot_ids: Tensor | None = None, slots: SlotTensors | None = None
) -> None:
    """Write ids[R] and, with `slots`, advance the state of the slots slot_ids[R]."""
    entries = search.scores.shape[1]
    max_entries = triton.cdiv(V, SLICE.value) + triton.cdiv(V, BLOCK.value)  # for any number of rows
    state = (slot_ids, slots.last_tokens, slots.lengths, slots.tokens) if slots else (None, None, None, None)
    _sample_kernel[(len(ids),)](
        search.scores,
        search.columns,
        ids,
        *state,
        entries,
        slots.padding_slot if slots else -1,
        ADVANCE=slots is not None,
        MAX_TEXT=slots.max_text if slots else 0,
        MAX_ENTRIES=triton.next_power_of_2(max_entries),
        num_warps=1,
        **pdl_options(ids.device),
    )


def sample(logits: Tensor, sampling: SamplingTensors) -> Tensor:
    """Sample a token per row: logits[R, V] any float -> ids[R] int64. See `kernels.interface.Kernels.sample`."""
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    _sample_rows(logits, sampling, ids, True)
    return ids


def _sample_rows(logits: Tensor, sampling: SamplingTensors, ids: Tensor, filtered: bool) -> None:
    """Sample logits[R, V] with the parameters of each row into ids[R] int64."""
    R, V = logits.shape
    _finish(_best_parts(logits, sampling, torch.arange(R, device=logits.device), filtered), V, ids)


def sample_slots(
    logits: Tensor,
    slots: SlotTensors,
    slot_ids: Tensor,
    ids: Tensor,
    filtered: bool,
    drafts: DraftRows | None = None,
) -> None:
    """Sample logits[B, V] any float with the parameters of the slots slot_ids[B] int64 into ids[B] int64.

    See `kernels.interface.Kernels.sample_slots`.
    """
    if drafts is not None:
        _sample_rows(logits, slots.sampling_of(slot_ids, drafts), ids, filtered)
        _accept_kernel[(len(ids),)](
            ids,
            slot_ids,
            drafts.offsets,
            drafts.token_ids,
            slots.last_tokens,
            slots.lengths,
            slots.tokens,
            len(ids),
            slots.padding_slot,
            MAX_TEXT=slots.max_text,
            MAX_ROWS=triton.next_power_of_2(len(ids)),
            num_warps=1,
            **pdl_options(ids.device),
        )
        return
    _finish(_best_parts(logits, slots.sampling, slot_ids, filtered), logits.shape[1], ids, slot_ids, slots)
