"""What one call takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def milliseconds(call: Callable[[], object], seconds: float) -> float:
    """Median of the calls that fit into so many seconds, at least two; a first one is a warm-up."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times[1:])
