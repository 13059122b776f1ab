"""Conversations that do not fit, truncated at their beginning."""

from __future__ import annotations

import pytest

from app.generation.truncation import drop_oldest

SYSTEM = {"role": "system", "content": "s" * 100}


def user(name: str) -> dict:
    return {"role": "user", "content": name * 10}


def answer(name: str) -> dict:
    return {"role": "assistant", "content": name * 10}


def call(name: str) -> dict:
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": name * 10}}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(name: str) -> dict:
    return {"role": "tool", "tool_call_id": name, "content": name * 10}


QUESTIONS = [SYSTEM, user("a"), answer("b"), user("c"), answer("d"), SYSTEM, user("e")]
CALLS = [user("a"), call("b"), result("b"), call("c"), result("c"), answer("d"), user("e"), call("f"), result("f")]


@pytest.mark.parametrize(
    ("turns", "characters", "left"),
    [
        (QUESTIONS, 1, [0, 3, 4, 5, 6]),
        (QUESTIONS, 20, [0, 3, 4, 5, 6]),
        (QUESTIONS, 21, [0, 5, 6]),
        (QUESTIONS, 1000, [0, 5, 6]),
        (CALLS, 10, [1, 2, 3, 4, 5, 6, 7, 8]),
        (CALLS, 11, [3, 4, 5, 6, 7, 8]),
        (CALLS, 31, [6, 7, 8]),
        (CALLS, 61, [7, 8]),
        (CALLS, 1000, [7, 8]),
        ([answer("a"), user("b")], 0, [1]),
        ([user("a"), {**answer("b"), "reasoning_content": "r" * 50}, user("c"), user("d")], 70, [2, 3]),
    ],
)
def test_the_oldest_groups_of_turns_are_dropped(turns: list[dict], characters: int, left: list[int]):
    """Answers go with their questions and results with their calls; system turns and the last group stay."""
    assert drop_oldest(turns, characters) == [turns[index] for index in left]


@pytest.mark.parametrize("turns", [[], [SYSTEM], [SYSTEM, user("a"), answer("b")], [call("a"), result("a")]])
def test_the_last_group_is_not_dropped(turns: list[dict]):
    """There would be nothing to answer."""
    assert drop_oldest(turns, 1) is None
