"""Truncation of conversations that do not fit: whole turns are dropped, the oldest first."""

from __future__ import annotations

from typing import Any

from app.generation.request import Turns


def drop_oldest(turns: Turns, characters: int) -> Turns | None:
    """Return the turns without the oldest ones, which have at least `characters` together, or with one group of turns
    only; None if there was only one. System turns stay. A group begins at a turn of the user or at one with tool calls,
    so that calls stay with their results, and answers with their questions.
    """
    groups: list[list[int]] = []
    for index, turn in enumerate(turns):
        if turn["role"] == "system":
            continue
        if turn["role"] == "user" or "tool_calls" in turn or not groups:
            groups.append([])
        groups[-1].append(index)
    dropped: set[int] = set()
    for group in groups[:-1]:
        if characters <= 0 and dropped:
            break
        dropped.update(group)
        characters -= sum(_size(turns[index]) for index in group)
    return [turn for index, turn in enumerate(turns) if index not in dropped] if dropped else None


def _size(turn: dict[str, Any]) -> int:
    calls = sum(len(call["function"]["arguments"]) for call in turn.get("tool_calls", ()))
    return len(turn["content"] or "") + len(turn.get("reasoning_content", "")) + calls
