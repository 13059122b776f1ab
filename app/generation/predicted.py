"""PredictedTokens: counts of the drafts from a client's prediction, over all choices of its request."""

from __future__ import annotations

from app.streams.stream_log import PredictionTokens
from engine.drafting.note import PREDICTION
from engine.types import Phase, StatusEvent


class PredictedTokens:
    """Sum of the notes that come with the ends of choices.

    A choice that a stop string ends here has its note after its end, when the engine has ended it too.
    """

    def __init__(self, *, is_enabled: bool) -> None:
        """is_enabled: False if the request has no prediction."""
        self._is_enabled = is_enabled
        self._drafted = 0
        self._accepted = 0
        self._in_engine: set[int] = set()  # choices whose end is still to come

    @property
    def is_complete(self) -> bool:
        """Return whether no further note is to come."""
        return not self._in_engine

    @property
    def tokens(self) -> PredictionTokens | None:
        """Return the counts so far; None without a prediction."""
        return PredictionTokens(self._accepted, self._drafted - self._accepted) if self._is_enabled else None

    def add(self, event: StatusEvent) -> None:
        """Add the note of a choice that has ended, or record that the choice goes on."""
        if not self._is_enabled:
            return
        if event.phase is not Phase.ENDED:
            self._in_engine.add(event.choice)
            return
        self._in_engine.discard(event.choice)
        if (note := event.draft_note) is not None:
            self._drafted += note.drafted.get(PREDICTION, 0)
            self._accepted += note.accepted.get(PREDICTION, 0)
