"""Timing of calls on a CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def milliseconds(call: Callable[[], object], seconds: float) -> float:
    """Return the median milliseconds of the calls that fit in `seconds`, at least two, after a warm-up call."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times[1:])
