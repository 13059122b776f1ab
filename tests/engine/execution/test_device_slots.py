"""State of slots on the device: the tokens that are kept for lookups of drafts."""

from __future__ import annotations

import random

import pytest
import torch

from engine.execution.device_slots import DeviceSlots
from engine.execution.slots import SlotState
from engine.scheduling.batch import Batch, Join
from engine.types import SamplingParams
from kernels.reference.accept import count_rows
from kernels.reference.backend import ReferenceKernels
from kernels.slots import NO_DRAFT_TOKEN, DraftRows

SLOTS, MAX_LEN, V = 5, 40, 30
GREEDY = SamplingParams(max_tokens=MAX_LEN, temperature=0.0)


class KeptTokens:
    """Slots on a device, and the texts that they should have."""

    def __init__(self) -> None:
        self.state = SlotState(SLOTS, MAX_LEN, 8)
        self.device = DeviceSlots(self.state, torch.zeros(SLOTS + 1, dtype=torch.int64), has_tokens=True)
        self.texts: dict[int, list[int]] = {}

    def join(self, texts: dict[int, tuple[int, ...]]) -> None:
        """Let sequences enter these slots."""
        joins = tuple(Join(slot, text, 1, 0, GREEDY, (0,)) for slot, text in texts.items())
        batch = Batch(step=0, joins=joins)
        self.state.apply(batch)
        self.device.apply(batch)
        self.texts |= {slot: list(text) for slot, text in texts.items()}

    def check(self) -> None:
        """Compare all texts."""
        tokens = self.device.tensors.tokens
        assert tokens is not None
        for slot, text in self.texts.items():
            assert int(self.device.tensors.lengths[slot]) == len(text)
            assert tokens[slot, : len(text)].tolist() == text
        assert not tokens[SLOTS].any()


def test_a_slot_has_the_tokens_of_the_sequence_that_joined():
    """Sequences join several slots at once, and a slot that had a longer one."""
    kept = KeptTokens()
    kept.join({3: tuple(range(1, 30)), 0: (7,)})
    kept.check()
    kept.join({3: (8, 9), 1: tuple(range(MAX_LEN))})
    kept.check()


@pytest.mark.parametrize("seed", range(4))
def test_every_sampled_token_is_appended(seed: int):
    """Texts are right after joins and steps, recorded ones and others, with drafts and without."""
    source, kernels, kept = random.Random(seed), ReferenceKernels(), KeptTokens()
    for step in range(30):
        if step % 5 == 0:
            slots = source.sample(range(SLOTS), 3)
            kept.join({slot: tuple(source.choices(range(V), k=source.randint(1, 12))) for slot in slots})
        joined = sorted(slot for slot, text in kept.texts.items() if len(text) < MAX_LEN - 4)
        slots = source.sample(joined, min(3, len(joined)))
        rows = [(slot, offset) for slot in slots for offset in range(source.randint(1, 4))]
        if source.random() < 0.3:
            rows = [(slot, 0) for slot in slots]
        sampled = source.choices(range(V), k=len(rows))
        reads = [source.choice((sampled[row - 1], sampled[row - 1], 3, NO_DRAFT_TOKEN)) for row in range(len(rows))]
        drafts = DraftRows(torch.tensor([offset for _, offset in rows]), torch.tensor(reads))
        slot_ids, ids = torch.tensor([slot for slot, _ in rows]), torch.tensor(sampled)
        counted = count_rows(ids, drafts) if len(rows) > len(slots) else None
        if source.random() < 0.5:
            kept.device.advance(slot_ids, ids, counted)
        else:
            logits = torch.nn.functional.one_hot(ids, V).to(torch.float32)
            kernels.sample_slots(logits, kept.device.tensors, slot_ids, ids, True, drafts if counted else None)
        is_right = False
        for (slot, offset), token, read, before in zip(rows, sampled, reads, [0, *sampled], strict=False):
            is_right = offset == 0 or (is_right and read == before)
            if is_right:
                kept.texts[slot].append(token)
        kept.check()


def test_a_token_that_is_sampled_again_replaces_the_last_one():
    """Each slot has its own token, and 0 if its row fails."""
    kept = KeptTokens()
    kept.join({0: (1, 2), 2: (3, 4, 5), 4: (6,)})
    slots = torch.tensor([2, 0])
    kept.device.advance(slots, torch.tensor([8, 9]))
    kept.device.replace_last(slots, torch.tensor([10, -2]))
    kept.texts |= {0: [1, 2, 0], 2: [3, 4, 5, 10]}
    kept.check()


def test_a_sequence_that_has_ended_writes_to_no_other_row():
    """It may run on for some steps beyond its row."""
    kept = KeptTokens()
    kept.join({0: tuple(range(MAX_LEN)), 1: (2, 2, 2)})
    for _ in range(30):
        kept.device.advance(torch.tensor([0]), torch.tensor([9]))
    tokens = kept.device.tensors.tokens
    assert tokens is not None
    kept.texts[0] += [9] * 30
    assert tokens[0].tolist() == kept.texts[0][: tokens.shape[1]] and tokens[1, :3].tolist() == [2, 2, 2]


def test_tokens_are_kept_only_on_request():
    """Steps then count tokens and store nothing else."""
    state = SlotState(SLOTS, MAX_LEN, 8)
    slots = DeviceSlots(state, torch.zeros(SLOTS + 1, dtype=torch.int64))
    batch = Batch(step=0, joins=(Join(1, (5, 6), 1, 0, GREEDY, (0,)),))
    state.apply(batch)
    slots.apply(batch)
    slots.advance(torch.tensor([1]), torch.tensor([7]))
    slots.replace_last(torch.tensor([1]), torch.tensor([8]))
    assert slots.tensors.tokens is None and slots.tensors.lengths.tolist() == [1, 3, 1, 1, 1, 1]
