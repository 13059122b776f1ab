"""Progress that clears a request of the death of an engine. One definition, for engines and API processes."""

from __future__ import annotations

# Tokens of each choice after which an earlier crash is not attributed to a request: more than are in flight at once.
MIN_PROGRESS_TOKENS = 4


def has_progressed(tokens: int, choices: int) -> bool:
    """Return whether a request has made so much progress in its engine that its earlier state did not crash another.

    tokens: of all its choices, since the engine got it. choices: that have not ended.
    """
    return tokens >= MIN_PROGRESS_TOKENS * choices
