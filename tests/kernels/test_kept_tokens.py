"""Tokens that are kept for each slot: every sampled token is appended, by all back ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.interface import Kernels
from kernels.reference.sample import NAN_TOKEN
from kernels.slots import NO_DRAFT_TOKEN, DraftRows, SlotTensors
from tests.kernels.test_decode_step import SLOTS, make_slots

V, MAX_TEXT, STEPS = 70, 32, 6


def slots_with_tokens(device: torch.device) -> SlotTensors:
    """Return greedy slots with some kept tokens; those of two slots nearly fill their rows."""
    slots = make_slots(device)
    lengths = torch.tensor([3, 5, 8, 1, 31, 12, 29, 2, 20, 1], device=device)
    tokens = torch.randint(0, V, (SLOTS + 1, MAX_TEXT), generator=torch.Generator().manual_seed(2), dtype=torch.int32)
    return replace(slots, lengths=lengths, records=torch.zeros_like(slots.records), tokens=tokens.to(device))


def step_rows(generator: torch.Generator, *, has_drafts: bool) -> tuple[list[int], list[int]]:
    """Return the slots and offsets of the rows of a step: some slots in any order, with padding between them."""
    slot_ids, offsets = [], []
    for slot in torch.randperm(SLOTS, generator=generator).tolist()[:6]:
        rows = int(torch.randint(1, 5, (1,), generator=generator)) if has_drafts else 1
        slot_ids += [slot] * rows + [SLOTS]
        offsets += [*range(rows), 0]
    return slot_ids, offsets


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning", "ignore:All-NaN:RuntimeWarning")
@pytest.mark.parametrize("has_drafts", [False, True])
def test_tokens_that_count_are_appended(kernels: Kernels, device: torch.device, has_drafts: bool):
    """Tokens are at their positions after steps with drafts that are right, wrong or absent. That of a row with a NaN
    is 0. Padding has none, and nothing is written beyond a row of tokens."""
    generator = torch.Generator().manual_seed(3)
    slots = slots_with_tokens(device)
    assert slots.tokens is not None
    expected, counts = slots.tokens.clone(), slots.lengths.tolist()
    for _ in range(STEPS):
        rows, ahead = step_rows(generator, has_drafts=has_drafts)
        slot_ids, offsets = torch.tensor(rows, device=device), torch.tensor(ahead, device=device)
        logits = torch.randn(len(rows), V, generator=generator).to(device) * 3
        logits[int(torch.randint(len(rows), (1,), generator=generator)), 7] = torch.nan
        sampled = logits.argmax(dim=1).masked_fill(logits.isnan().any(dim=1), NAN_TOKEN)
        drafts = sampled.roll(1)  # right ones, except for those after a NaN
        drafts[::3] += 1
        drafts[1::7] = NO_DRAFT_TOKEN
        ids = torch.empty_like(slot_ids)
        kernels.sample_slots(logits, slots, slot_ids, ids, False, DraftRows(offsets, drafts) if has_drafts else None)
        is_counted = False
        for row, (slot, offset) in enumerate(zip(rows, ahead, strict=True)):
            token, draft, before = int(sampled[row]), int(drafts[row]), int(sampled[row - 1])
            is_counted = offset == 0 or (is_counted and draft == before and draft >= 0 and token >= 0)
            if is_counted and slot != SLOTS:
                if counts[slot] < MAX_TEXT:
                    expected[slot, counts[slot]] = max(token, 0)
                counts[slot] += 1
        assert torch.equal(ids, sampled)
        assert slots.lengths.tolist() == counts
        assert torch.equal(slots.tokens, expected)
    assert max(counts) > MAX_TEXT


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning", "ignore:All-NaN:RuntimeWarning")
def test_a_token_after_an_absent_draft_does_not_count(kernels: Kernels, device: torch.device):
    """The same holds after a negative draft that equals the ID of a row with a NaN."""
    slots = slots_with_tokens(device)
    slot_ids, offsets = torch.tensor([0, 0, 1, 1], device=device), torch.tensor([0, 1, 0, 1], device=device)
    logits = torch.randn(4, V, device=device)
    logits[2, 7] = torch.nan
    ids, drafts = torch.empty_like(slot_ids), torch.tensor([-1, NO_DRAFT_TOKEN, -1, NAN_TOKEN], device=device)
    kernels.sample_slots(logits, slots, slot_ids, ids, False, DraftRows(offsets, drafts))
    assert ids[2] == NAN_TOKEN and slots.lengths[:2].tolist() == [4, 6]
