"""Drafts that are looked up in the text of each slot, by all back ends."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from engine.drafting import lookup
from kernels.interface import Kernels
from kernels.slots import NO_DRAFT_TOKEN, SlotTensors

DRAFTS = 6


def make_slots(texts: Sequence[Sequence[int]], max_text: int, device: torch.device) -> SlotTensors:
    """Return a slot for each text and a padding slot. Beyond a text are tokens of another one."""
    lengths = torch.tensor([*map(len, texts), 1])
    tokens = torch.tensor([5, 6] * max_text, dtype=torch.int32)[:max_text].repeat(len(lengths), 1)
    for row, text in zip(tokens, texts, strict=False):
        row[: len(text)] = torch.tensor(text)
    nothing = torch.zeros_like(lengths)
    return SlotTensors(
        last_tokens=nothing.to(device),
        lengths=lengths.to(device),
        page_table=nothing.to(device).view(-1, 1).to(torch.int32),
        records=nothing.to(device).view(-1, 1).to(torch.uint8),
        tokens=tokens.to(device),
    )


def look_up(
    kernels: Kernels, slots: SlotTensors, slot_ids: Sequence[int], limits: Sequence[int]
) -> tuple[list[list[int]], list[int]]:
    """Return the drafts and the lengths of the matches."""
    device = slots.lengths.device
    drafts = torch.full((len(slot_ids), DRAFTS), -7, device=device)
    matches = torch.full((len(slot_ids),), -7, dtype=torch.int32, device=device)
    kernels.draft_slots(
        slots, torch.tensor(slot_ids, device=device), torch.tensor(limits, device=device), drafts, matches
    )
    return drafts.tolist(), matches.tolist()


def definition(text: Sequence[int], limit: int) -> tuple[list[int], int]:
    """Return the drafts for a text, compared token by token at all places, and the length of the match."""
    last, longest, best = len(text) - 1, 0, 0
    for place in range(last):
        match = 0
        while match < 16 and match <= place and text[place - match] == text[last - match]:
            match += 1
        if match >= max(2, longest):
            longest, best = match, place
    if not longest or limit < 1:
        return [NO_DRAFT_TOKEN] * DRAFTS, 0
    extended = list(text)
    while len(extended) < len(text) + limit:
        extended.append(extended[best - last])
    drafts = extended[best + 1 : best + 1 + min(limit, DRAFTS)]
    return drafts + [NO_DRAFT_TOKEN] * (DRAFTS - len(drafts)), longest


def random_text(source: random.Random, alphabet: int, longest: int) -> list[int]:
    """Return a text of which some parts repeat earlier ones."""
    text: list[int] = []
    length = source.randint(1, longest)
    while len(text) < length:
        begin = source.randrange(len(text) + 1)
        repeated = text[begin : begin + source.randint(1, 30)]
        text += repeated if source.random() < 0.4 else [source.randrange(alphabet)]
    return text[:length]


@pytest.mark.parametrize("alphabet", [1, 2, 3, 20, 1000])
def test_drafts_follow_the_longest_match(kernels: Kernels, device: torch.device, alphabet: int):
    """The latest of several counts, in texts of few different tokens, with slots in any order."""
    source = random.Random(alphabet)
    texts = [random_text(source, alphabet, longest) for longest in [3, 10, 40, 90] * 12]
    limits = [source.randint(0, DRAFTS + 2) for _ in texts]
    order = source.sample(range(len(texts)), len(texts))
    found = look_up(kernels, make_slots(texts, 90, device), order, [limits[slot] for slot in order])
    expected = [definition(texts[slot], limits[slot]) for slot in order]
    assert list(zip(*found, strict=True)) == expected


@pytest.mark.parametrize("alphabet", [1, 2, 3, 20])
def test_drafts_are_those_of_the_host(alphabet: int, reference_kernels: Kernels, monkeypatch: pytest.MonkeyPatch):
    """Host and device agree if the host too looks at all places."""
    monkeypatch.setattr(lookup, "MAX_CANDIDATES", 1000)
    source = random.Random(alphabet)
    texts = [random_text(source, alphabet, 90) for _ in range(40)]
    drafts, matches = look_up(
        reference_kernels, make_slots(texts, 90, torch.device("cpu")), range(len(texts)), [DRAFTS] * len(texts)
    )
    for text, tokens, match in zip(texts, drafts, matches, strict=True):
        index = lookup.Lookup(text)
        index.index(len(text))
        draft = index.draft(DRAFTS)
        assert (draft.tokens or (NO_DRAFT_TOKEN,) * DRAFTS, draft.match if draft.tokens else 0) == (
            tuple(tokens),
            match,
        )


@pytest.mark.parametrize("programs", [1, 12, 1024])
def test_the_number_of_programs_changes_no_draft(
    programs: int, triton_kernels: Kernels, device: torch.device, monkeypatch: pytest.MonkeyPatch
):
    """Texts of up to five blocks are searched by one program for each slot, and by several."""
    monkeypatch.setattr("kernels.triton.lookup.MAX_PROGRAMS", programs)
    source = random.Random(programs)
    texts = [random_text(source, alphabet, 5000) for alphabet in (2, 20, 1000, 1000)]
    text = list(range(2100))
    texts += [text + text[last - 20 : last + 1] for last in (1022, 1023, 1024, 1030, 2047, 2048)]  # beside borders
    limits = [DRAFTS] * len(texts)
    found = look_up(triton_kernels, make_slots(texts, 5008, device), range(len(texts)), limits)
    assert list(zip(*found, strict=True)) == [definition(text, DRAFTS) for text in texts]


def test_a_long_text_is_searched_from_its_beginning(kernels: Kernels, device: torch.device):
    """A match of 16 tokens in 131,072 wins over a later one of 15, and over an earlier one of 30."""
    end = list(range(30))
    text = [*end, 50, 99, 51, 52, *end[-16:], 53, 54, 55]
    text += list(range(1000, 131_072 - 20 - len(text) - len(end)))
    text += [0, *end[-15:], 60, 61, 62, 63]
    text += end
    assert len(text) <= 131_072
    drafts, matches = look_up(kernels, make_slots([text], 131_088, device), [0], [4])
    assert drafts == [[53, 54, 55, 1000, NO_DRAFT_TOKEN, NO_DRAFT_TOKEN]] and matches == [16]


def test_a_slot_without_a_limit_has_no_drafts(kernels: Kernels, device: torch.device):
    """The same holds for padding, a text of two tokens, and one that ran on beyond its row."""
    repeated = [1, 2, 3] * 8
    slots = make_slots([repeated, [4, 4], repeated], 24, device)
    assert slots.tokens is not None
    slots.lengths[2] += 1
    slots.lengths[3] = 24  # of padding, which has the same tokens, so that the text before it would go on there
    slots.tokens[3] = slots.tokens[2]
    drafts, matches = look_up(kernels, slots, [0, 1, 2, 3, 0], [0, 6, 6, 6, 2])
    assert drafts == [[NO_DRAFT_TOKEN] * DRAFTS] * 4 + [[1, 2] + [NO_DRAFT_TOKEN] * 4]
    assert matches == [0, 0, 0, 0, 16]
