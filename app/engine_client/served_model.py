"""ServedModel: the model that all engines of the service have, and whether another engine fits them."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.types import ModelInfo

# For which texts of a model wait for an engine of that model, if those of another one are there.
MODEL_GRACE_SECONDS = 30.0


class ServedModel:
    """Model of the last engine that was accepted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.info: ModelInfo | None = None  # None before any engine was ready
        self._clock = clock
        self._served_at = clock()  # last time at which an engine was known to be ready

    def note_engine(self) -> None:
        """Record that an engine is ready now."""
        self._served_at = self._clock()

    def expected_fingerprint(self, *, is_served: bool, has_started: bool) -> str:
        """Return the fingerprint that further engines must have; empty: any.

        is_served: an engine is ready. has_started: there is text of the model that only its engines continue; it waits
        for `MODEL_GRACE_SECONDS`.
        """
        if self.info is None:
            return ""
        is_awaited = has_started and self._clock() - self._served_at < MODEL_GRACE_SECONDS
        return self.info.fingerprint if is_served or is_awaited else ""

    def difference(self, info: ModelInfo) -> str:
        """Return why an engine cannot continue the texts of the others; empty if it can, or is the first."""
        if self.info is None:
            return ""
        if info.fingerprint != self.info.fingerprint:
            return (
                f"its model, dtype or kernels differ ({info.fingerprint}) from those in use ({self.info.fingerprint})"
            )
        if info.max_sequence_tokens < self.info.max_sequence_tokens:
            limits = f"{info.max_sequence_tokens} tokens, those in use {self.info.max_sequence_tokens}"
            return f"its longest sequence has {limits}"
        return ""
