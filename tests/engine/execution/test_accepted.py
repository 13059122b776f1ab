"""Tokens of a step that count: those before the first wrong draft, and the one sampled in its place."""

from __future__ import annotations

import pytest

from engine.execution.drafted_rows import accepted
from engine.scheduling.batch import Chunk, Sampled


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
