"""Types of moments on the monotonic clocks of two processes, which differ between machines.

Messages carry moments of the engine's clock in both directions. The API process translates them at its end of the
channel (`app.engine_client.channel_clock`).
"""

from __future__ import annotations

import time
from typing import NewType

EngineTime = NewType("EngineTime", float)  # moment on the engine's monotonic clock, in seconds


def engine_time() -> EngineTime:
    """Return the current moment on the engine's clock; called in its process only."""
    return EngineTime(time.monotonic())
