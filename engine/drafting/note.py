"""Note of an engine about the drafts of a choice, at its end."""

from __future__ import annotations

import msgspec

LOOKUP = "lookup"  # sources of drafts
ANSWERS = "answers"
PREDICTION = "prediction"
GRAMMAR = "grammar"


class DraftNote(msgspec.Struct, frozen=True, array_like=True):
    """Counts of a choice in the engine that ended it.

    steps: that yielded its tokens. drafted: guessed tokens that were in these steps, by the source of the draft.
    accepted: those of them that became tokens of the answer.
    """

    steps: int
    drafted: dict[str, int]
    accepted: dict[str, int]
