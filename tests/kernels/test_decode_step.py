"""Gathering and sampling of slots in a recorded step, by all back ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.interface import Kernels
from kernels.reference.sample import NAN_TOKEN
from kernels.slots import DraftRows, PromptRows, SamplingTensors, SlotRecord, SlotTensors, as_bytes

SLOTS, PAGES, PAGE_SIZE, V = 9, 700, 4, 2100


def make_slots(device: torch.device) -> SlotTensors:
    """Return slots of all kinds with lengths on both sides of a page border, and a padding slot at the end."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([1, 2, 4, 5, 8, 9, 1199, 1200, 17, 1])
    table = torch.randint(0, 5000, (SLOTS + 1, PAGES), generator=generator, dtype=torch.int32)
    records = np.zeros(SLOTS + 1, SlotRecord)
    records["temperature"] = [0.0, 0.7, 1.0, 1.3, 1.0, 0.5, 1.0, 1.0, 1.0, 0.0]
    records["top_k"] = [0, 0, 5, 40, 0, 0, 0, 3, 0, 0]
    records["top_p"] = [1.0, 0.9, 1.0, 0.5, 1.0, 0.7, 1.0, 1.0, 1.0, 0.0]
    records["min_p"] = [0.0, 0.0, 0.0, 0.0, 0.1, 0.3, 0.0, 0.0, 0.0, 0.0]
    records["seed"] = (np.arange(SLOTS + 1) * -(2**40) + 5).astype(np.uint64)
    records["choice"] = np.arange(SLOTS + 1) % 3
    return SlotTensors(
        last_tokens=torch.arange(SLOTS + 1).to(device) * 7,
        lengths=lengths.to(device),
        page_table=table.to(device),
        records=torch.from_numpy(as_bytes(records)).to(device),
    )


def copy_of(slots: SlotTensors) -> SlotTensors:
    """Return a copy, so that a step can change the original."""
    return replace(
        slots,
        last_tokens=slots.last_tokens.clone(),
        lengths=slots.lengths.clone(),
        page_table=slots.page_table.clone(),
        records=slots.records.clone(),
    )


@pytest.mark.parametrize("width", [300, 301, PAGES])
def test_a_row_is_its_slot(kernels: Kernels, device: torch.device, width: int):
    """Token, position, cache position and page table belong to the slot, in any order; padding rows write no keys."""
    slots = make_slots(device)
    order = [3, SLOTS, 0, 7, 6, 1, SLOTS, 2, 5, 4]
    rows = kernels.gather_slots(slots, torch.tensor(order, device=device), None, width, PAGE_SIZE)
    lengths = slots.lengths[order]
    assert torch.equal(rows.token_ids, slots.last_tokens[order])
    assert torch.equal(rows.positions, lengths - 1)
    assert torch.equal(rows.context_lens, lengths.to(torch.int32))
    assert torch.equal(rows.page_table, slots.page_table[order, :width])
    for slot, position, cache_position in zip(order, rows.positions.tolist(), rows.slot_mapping.tolist(), strict=True):
        page = int(slots.page_table[slot, position // PAGE_SIZE])
        assert cache_position == (-1 if slot == SLOTS else page * PAGE_SIZE + position % PAGE_SIZE)


def test_a_row_of_a_prompt_has_its_given_token(kernels: Kernels, device: torch.device):
    """It has its own position in its slot's pages and no decode context. Other rows are their slots' last tokens."""
    slots = make_slots(device)
    which, positions = [7, 7, 2, 6, 7, SLOTS], [-1, 0, -1, 1001, 1198, -1]
    parameters = torch.tensor([5, 11, 6, 12, 13, 8], device=device)
    prompts = PromptRows(torch.tensor(positions, device=device), parameters)
    rows = kernels.gather_slots(slots, torch.tensor(which, device=device), prompts, 301, PAGE_SIZE)
    assert rows.token_ids.tolist() == [49, 11, 14, 12, 13, 7 * SLOTS]
    assert rows.positions.tolist() == [1199, 0, 3, 1001, 1198, 0]
    assert rows.context_lens.tolist() == [1200, 0, 4, 0, 0, 1]
    assert torch.equal(rows.page_table, slots.page_table[which, :301])
    for slot, position, cache_position in zip(which, rows.positions.tolist(), rows.slot_mapping.tolist(), strict=True):
        page = int(slots.page_table[slot, position // PAGE_SIZE])
        assert cache_position == (-1 if slot == SLOTS else page * PAGE_SIZE + position % PAGE_SIZE)


def test_a_row_of_a_draft_follows_its_slots_last_token(kernels: Kernels, device: torch.device):
    """Its position and context grow by the drafts before it. A row without drafts before it is the slot's."""
    slots = make_slots(device)
    which, offsets = [7, 7, 7, SLOTS, 2, 2, 5], [0, 1, 2, 0, 0, 1, 0]
    drafts = DraftRows(*(torch.tensor(values, device=device) for values in (offsets, [-1, 11, 12, -1, -1, 13, -1])))
    rows = kernels.gather_slots(slots, torch.tensor(which, device=device), drafts, 301, PAGE_SIZE)
    assert rows.token_ids.tolist() == [49, 11, 12, 7 * SLOTS, 14, 13, 35]
    assert rows.positions.tolist() == [1199, 1200, 1201, 0, 3, 4, 8]
    assert rows.context_lens.tolist() == [1200, 1201, 1202, 1, 4, 5, 9]
    assert torch.equal(rows.page_table, slots.page_table[which, :301])
    for slot, position, cache_position in zip(which, rows.positions.tolist(), rows.slot_mapping.tolist(), strict=True):
        page = int(slots.page_table[slot, position // PAGE_SIZE])
        assert cache_position == (-1 if slot == SLOTS else page * PAGE_SIZE + position % PAGE_SIZE)


def test_a_row_without_a_draft_changes_nothing(kernels: Kernels, device: torch.device):
    """It reads token 0 at its slot's last position and writes no keys, whichever negative ID its draft has. The first
    row of a slot, whose ID is negative too, reads the last token."""
    slots = make_slots(device)
    which, offsets, given = [7, 7, 7, 7, 2, 2, SLOTS], [0, 1, 2, 3, 0, 1, 0], [-1, 11, -3, -1, -3, -2, -3]
    drafts = DraftRows(*(torch.tensor(values, device=device) for values in (offsets, given)))
    rows = kernels.gather_slots(slots, torch.tensor(which, device=device), drafts, 301, PAGE_SIZE)
    assert rows.token_ids.tolist() == [49, 11, 0, 0, 14, 0, 7 * SLOTS]
    assert rows.positions.tolist() == [1199, 1200, 1199, 1199, 3, 3, 0]
    assert rows.context_lens.tolist() == [1200, 1201, 1200, 1200, 4, 4, 1]
    assert torch.equal(rows.page_table, slots.page_table[which, :301])
    first, further, second = (
        int(slots.page_table[slot, position // PAGE_SIZE]) * PAGE_SIZE + position % PAGE_SIZE
        for slot, position in ((7, 1199), (7, 1200), (2, 3))
    )
    assert rows.slot_mapping.tolist() == [first, further, -1, -1, second, -1, -1]


# Triton's interpreter computes with numpy, which warns of NaN; a GPU does not.
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning", "ignore:All-NaN:RuntimeWarning")
@pytest.mark.parametrize(
    ("order", "filtered"),
    [
        ([6, 3, SLOTS, 0, 1, 5, SLOTS, 4, 7], True),  # without slots 2 and 8
        ([6, 8, SLOTS, 0], True),
        ([6, 8, SLOTS, 0], False),  # none of these slots has a filter
    ],
)
def test_a_slot_is_sampled_with_its_parameters_and_advances(
    kernels: Kernels, device: torch.device, order: list[int], filtered: bool
):
    """IDs are those of `sample`; slots outside the step and the padding slot are not modified. A row with NaN has no
    token, but its slot stores a readable one."""
    slots = make_slots(device)
    before = copy_of(slots)
    torch.manual_seed(1)
    which = torch.tensor(order, device=device)
    logits = torch.randn(len(order), V, device=device) * 3
    logits[0, 7] = torch.nan
    ids = torch.full_like(which, -1)
    kernels.sample_slots(logits, slots, which, ids, filtered)
    expected = kernels.sample(logits, before.sampling.select(which))
    is_sequence = which != SLOTS
    assert torch.equal(ids, expected) and int(ids[0]) == NAN_TOKEN
    readable = expected.clamp(min=0)
    assert torch.equal(slots.last_tokens, before.last_tokens.index_copy(0, which[is_sequence], readable[is_sequence]))
    assert torch.equal(
        slots.lengths, before.lengths.index_add(0, which[is_sequence], torch.ones_like(which[is_sequence]))
    )
    assert torch.equal(slots.page_table, before.page_table) and torch.equal(slots.records, before.records)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning", "ignore:All-NaN:RuntimeWarning")
@pytest.mark.parametrize(("order", "filtered"), [((3, 5, 7), True), ((6, 0, 8), False)])
def test_a_slot_advances_by_its_drafts_that_are_right(
    kernels: Kernels, device: torch.device, order: tuple[int, int, int], filtered: bool
):
    """Each row is sampled at its own position. A draft that is wrong, and one whose row has a NaN, end the tokens that
    count; those of a first row count in any case."""
    slots = make_slots(device)
    before = copy_of(slots)
    wrong_third, nan_third, nan_first = order
    slot_ids = torch.tensor([*[wrong_third] * 5, SLOTS, *[nan_third] * 4, *[nan_first] * 2, SLOTS], device=device)
    offsets = torch.tensor([*range(5), 0, *range(4), *range(2), 0], device=device)
    torch.manual_seed(1)
    logits = torch.randn(len(slot_ids), V, device=device) * 3
    logits[8, 7] = logits[10, 7] = torch.nan
    sampling = before.sampling.select(slot_ids)
    expected = kernels.sample(logits, SamplingTensors(sampling.records, sampling.positions + offsets))
    right = expected.roll(1).clamp(min=0)
    right[3] += 1
    ids = torch.full_like(slot_ids, -5)
    kernels.sample_slots(logits, slots, slot_ids, ids, filtered, DraftRows(offsets, right))
    assert torch.equal(ids, expected) and ids[8] == ids[10] == NAN_TOKEN
    advanced = torch.tensor([wrong_third, nan_third, nan_first], device=device)
    counts = torch.tensor([3, 2, 1], device=device)
    last = torch.stack([expected[2], expected[7], torch.zeros_like(ids[0])])
    assert torch.equal(slots.lengths, before.lengths.index_add(0, advanced, counts))
    assert torch.equal(slots.last_tokens, before.last_tokens.index_copy(0, advanced, last))
    assert torch.equal(slots.page_table, before.page_table) and torch.equal(slots.records, before.records)
