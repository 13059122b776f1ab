"""Limits of reasoning: the block is closed when its tokens are used up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.constraints.constraint import ReasoningConstraint
from engine.types import ReasoningLimit

TOKENS = (b"", b"<think>", b"</think>", b"<thi", b"nk>", b"</th", b"ink>", b" ", b"a", b"b", b"\n")
CLOSING = (10, 2)


def make(limit: int, *, is_open: bool) -> ReasoningConstraint:
    parameters = ReasoningLimit(limit, CLOSING, b"" if is_open else b"<think>", b"</think>")
    return ReasoningConstraint(parameters, TOKENS, None)


def forced(constraint: ReasoningConstraint) -> int | None:
    """Return the only token that may come next; None if any may."""
    if not constraint.is_active:
        return None
    words = np.zeros(1, np.uint32)
    constraint.write_masks(words.ctypes.data, words.nbytes)
    [token_id] = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    return int(token_id)


def generate(constraint: ReasoningConstraint, wanted: list[int]) -> list[int]:
    """Return the tokens of a model that wants these, where it may."""
    sampled = []
    for token_id in wanted:
        must = forced(constraint)
        sampled.append(token_id if must is None else must)
        constraint.consume(sampled[-1])
    return sampled


@pytest.mark.parametrize(
    ("limit", "is_open", "wanted", "sampled"),
    [
        (2, True, [8, 8, 8, 8, 9], [8, 8, 10, 2, 9]),
        (0, True, [8, 8, 9], [10, 2, 9]),
        (2, False, [1, 8, 8, 8, 8, 9], [1, 8, 8, 10, 2, 9]),
        (2, False, [7, 3, 4, 8, 8, 8, 8, 9], [7, 3, 4, 8, 8, 10, 2, 9]),
        (5, True, [8, 2, 8, 8, 8, 8, 8, 8], [8, 2, 8, 8, 8, 8, 8, 8]),
        (1, False, [8, 1, 8, 8, 8], [8, 1, 8, 8, 8]),
        (2, True, [8, 5, 6, 9, 9], [8, 5, 6, 9, 9]),
    ],
    ids=["used up", "zero", "opened by the answer", "opened in pieces", "closed before", "no block", "being closed"],
)
def test_a_block_is_closed_at_its_limit(limit: int, is_open: bool, wanted: list[int], sampled: list[int]):
    """Neither an answer without a block nor text after it is changed, and a closing tag is not interrupted."""
    assert generate(make(limit, is_open=is_open), wanted) == sampled


@given(st.lists(st.integers(1, 10), max_size=40), st.integers(0, 6), st.booleans())
def test_no_block_is_longer_than_its_limit_and_the_tag(wanted: list[int], limit: int, is_open: bool):
    """Whatever a model wants; and a constraint that is rebuilt from the tokens forces the same one."""
    constraint = make(limit, is_open=is_open)
    sampled = generate(constraint, wanted)
    rebuilt = make(limit, is_open=is_open)
    for token_id in sampled:
        rebuilt.consume(token_id)
    assert forced(rebuilt) == forced(constraint)
    text = b"".join(TOKENS[token_id] for token_id in sampled)
    if is_open and b"</think>" not in text:
        assert len(sampled) <= limit + len(CLOSING) + 1


@pytest.mark.parametrize(
    ("is_open", "wanted", "sampled"),
    [
        (True, [5, 6, 8, 8, 8, 9], [5, 6, 8, 10, 2, 9]),
        (False, [1, 8, 5, 6, 8, 9], [1, 8, 5, 6, 10, 2]),
        (False, [3, 4, 8, 8, 8, 8], [3, 4, 8, 8, 8, 8]),
        (True, [8, 2, 8, 8, 8, 8], [8, 2, 8, 8, 8, 8]),
    ],
    ids=["closing tag as text", "inside", "opening tag as text", "closed"],
)
def test_tags_that_are_special_tokens_are_not_text(is_open: bool, wanted: list[int], sampled: list[int]):
    """The same characters in ordinary tokens neither open nor close a block."""
    marks = {1: b"\xfe", 2: b"\xff"}
    limit = ReasoningLimit(3, CLOSING, b"" if is_open else b"\xfe", b"\xff", marks)
    assert generate(ReasoningConstraint(limit, TOKENS, None), wanted) == sampled
