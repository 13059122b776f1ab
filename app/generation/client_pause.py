"""ClientPause: a pause of a request by its client. It ends with the request after a maximum time, and counts in no
latency.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TOO_LONG = "paused_too_long"  # error code of a request that was paused for more than the maximum time


class ClientPause:
    """Pause that began when it was created. Times are monotonic seconds."""

    def __init__(self, max_seconds: float, on_too_long: Callable[[str, str], None]) -> None:
        """on_too_long: called with message and code if the pause lasts for `max_seconds`."""
        self._began = time.monotonic()
        message = f"The request was paused for more than {max_seconds:g} s (max_pause)."
        self._timer = asyncio.get_running_loop().call_later(max_seconds, on_too_long, message, TOO_LONG)

    def end(self) -> Callable[[float | None], float | None]:
        """End the pause. Returns a function that moves earlier moments, so that the time between them and later ones
        does not contain the pause.
        """
        self._timer.cancel()
        now = time.monotonic()
        seconds = now - self._began

        def moved(moment: float | None) -> float | None:
            # Tokens of a step in flight have come during the pause.
            return None if moment is None else min(moment + seconds, now)

        return moved
