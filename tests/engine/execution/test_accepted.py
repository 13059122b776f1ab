"""Tokens of a step that count: those before the first wrong draft, and the one sampled in its place."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.execution.drafted_rows import SampledRows, accepted
from engine.scheduling.batch import Batch, Chunk, Sampled
from engine.scheduling.constraint import NO_TOKEN_ALLOWED
from kernels.reference.accept import count_rows, store_last
from kernels.reference.sample import NAN_TOKEN
from kernels.slots import NO_DRAFT_TOKEN, DraftRows
from tests.profiles import examples


def rows(*tokens: int) -> list[Sampled]:
    return [Sampled(token) for token in tokens]


def chunk(slot: int, *drafts: int) -> Chunk:
    return Chunk(slot, 10, 1 + len(drafts), 1 + len(drafts), None, drafts)


@pytest.mark.parametrize(
    ("drafts", "sampled", "counting"),
    [
        ((1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4)),
        ((1, 2, 3), (1, 2, 9, 4), (1, 2, 9)),
        ((1, 2, 3), (1, 9, 3, 4), (1, 9)),
        ((1, 2, 3), (9, 2, 3, 4), (9,)),  # later rows have read a wrong token, whatever they sampled
        ((1,), (1, 5), (1, 5)),
        ((1,), (2, 5), (2,)),
        ((0,), (0, 0), (0, 0)),
        ((1, 2), (1, -1, 3), (1,)),  # the next step reports the NaN of the row that reads token 1
        ((1, 2), (1, 2, -1), (1, 2)),
        ((1, 2), (-1, 2, 3), (-1,)),
    ],
)
def test_tokens_count_while_drafts_are_right(
    drafts: tuple[int, ...], sampled: tuple[int, ...], counting: tuple[int, ...]
):
    """Beside a row without drafts, which is untouched."""
    first, further = accepted(rows(7, *sampled), (chunk(3, *drafts),))
    assert first == rows(7, counting[0])
    assert further == ({1: tuple(rows(*counting[1:]))} if len(counting) > 1 else {})


def test_each_chunk_has_its_own_rows():
    """Chunks with different numbers of drafts, one after another."""
    chunks = chunk(0, 1, 2), chunk(4, 8), chunk(1, 5, 6, 7)
    first, further = accepted(rows(*(30, 31), *(1, 2, 3), *(9, 8), *(5, 6, 0, 1)), chunks)
    assert first == rows(30, 31, 1, 9, 5)
    assert further == {2: tuple(rows(2, 3)), 4: tuple(rows(6, 0))}


def test_a_step_without_drafts_has_no_further_tokens():
    """Its rows may have sampled anything."""
    assert accepted(rows(1, -1, 1), ()) == (rows(1, -1, 1), {})


token = st.integers(-2, 1)  # few, so that drafts are often right; negative ones are none
slot = st.tuples(token, st.lists(st.tuples(st.integers(0, 1), token), max_size=6))  # the first token; draft and token


@given(slots=st.lists(slot, min_size=1, max_size=6))
@settings(max_examples=examples(600))
def test_tensors_accept_the_same_tokens(slots: list[tuple[int, list[tuple[int, int]]]]):
    """Of a step with plain slots and others with drafts: the tokens that count, and the last one of each slot."""
    slots.sort(key=lambda slot: bool(slot[1]))
    plain = [index for index, (_, rows) in enumerate(slots) if not rows]
    chunks = [chunk(index, *(draft for draft, _ in rows)) for index, (_, rows) in enumerate(slots) if rows]
    sampled = [token for first, rows in slots for token in (first, *(token for _, token in rows))]
    first, further = accepted(rows(*sampled), chunks)
    expected = [[first[index], *further.get(index, ())] for index in range(len(slots))]

    sampled_rows = SampledRows.of(Batch(step=0, decodes=tuple(plain), chunks=tuple(chunks)))
    slot_ids, offsets, reads = map(torch.from_numpy, (sampled_rows.slots, sampled_rows.offsets, sampled_rows.reads))
    counted_rows = count_rows(torch.tensor(sampled), DraftRows(offsets, reads))
    counted = [[] for _ in slots]
    for index, token, counts in zip(slot_ids, sampled, counted_rows.is_counted.tolist(), strict=True):
        if counts:
            counted[index].append(Sampled(token))
    assert counted == expected
    assert [sampled[row] for row in counted_rows.is_last.nonzero()] == [tokens[-1].token_id for tokens in expected]
    last_tokens = torch.full((len(slots) + 1,), 9)
    store_last(last_tokens, slot_ids, torch.tensor(sampled), counted_rows)
    assert last_tokens.tolist() == [*(max(0, tokens[-1].token_id) for tokens in expected), 9]


@pytest.mark.parametrize("absent", [NO_DRAFT_TOKEN, NAN_TOKEN, NO_TOKEN_ALLOWED])
def test_a_token_after_an_absent_draft_does_not_count(absent: int):
    """A row before it that has failed with the same ID makes no difference."""
    ids, reads = torch.tensor([absent, 5, 6]), torch.tensor([-1, absent, 5])
    assert count_rows(ids, DraftRows(torch.arange(3), reads)).is_counted.tolist() == [True, False, False]
    assert len({NO_DRAFT_TOKEN, NAN_TOKEN, NO_TOKEN_ALLOWED}) == 3
