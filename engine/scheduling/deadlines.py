"""Detection of requests that can no longer meet their deadline, checked at the earliest possible time only."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from itertools import count

from engine.scheduling.sequence import Sequence

MIN_STALE_ALARMS = 32  # stale alarms below which the heap is not rebuilt


class Deadlines:
    """Heap of alarms for sequences with a deadline, earliest first."""

    def __init__(self, least_seconds: Callable[[Sequence], float]) -> None:
        self._least_seconds = least_seconds  # minimum time to complete a sequence
        self._alarms: list[tuple[float, int, Sequence]] = []
        self._serial = count()
        self._next_checks: dict[Sequence, float] = {}  # time of each sequence's next check; its other alarms are stale

    def watch(self, sequence: Sequence) -> None:
        """Check `sequence` at the time at which its deadline becomes unreachable without progress.

        Called again after the sequence lost computed tokens.
        """
        deadline = sequence.request.deadline
        if deadline is not None:
            alarm = deadline - self._least_seconds(sequence)
            if alarm < self._next_checks.get(sequence, math.inf):
                self._set(sequence, alarm)

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended.

        Its alarms may be weeks away and would keep it in memory until then.
        """
        if self._next_checks.pop(sequence, None) is not None:
            self._drop_stale()

    def _set(self, sequence: Sequence, alarm: float) -> None:
        self._next_checks[sequence] = alarm
        heapq.heappush(self._alarms, (alarm, next(self._serial), sequence))
        self._drop_stale()

    def _drop_stale(self) -> None:
        """Drop stale alarms once they are the majority, so that the cost per alarm is O(1) amortised."""
        if len(self._alarms) > MIN_STALE_ALARMS + 2 * len(self._next_checks):
            self._alarms = [alarm for alarm in self._alarms if self._next_checks.get(alarm[2]) == alarm[0]]
            heapq.heapify(self._alarms)

    def unreachable(self, now: float) -> Iterator[tuple[Sequence, str]]:
        """Yield the sequences that cannot meet their deadline any more, each with the reason in numbers."""
        while self._alarms and self._alarms[0][0] <= now:
            alarm, _, sequence = heapq.heappop(self._alarms)
            deadline = sequence.request.deadline
            if self._next_checks.get(sequence) != alarm or deadline is None:
                continue
            least = self._least_seconds(sequence)
            if deadline - least > now:  # same expression as in `_set`, or rounding would repeat the alarm for ever
                self._set(sequence, deadline - least)
            elif deadline <= now:
                yield sequence, "the deadline has passed"
            else:
                yield (
                    sequence,
                    f"the deadline cannot be met: {1000 * (deadline - now):.1f} ms are left, "
                    f"but the remaining work takes at least {1000 * least:.1f} ms",
                )

    def next_alarm(self) -> float:
        """Return the time of the next check; infinity if there is none."""
        return self._alarms[0][0] if self._alarms else math.inf
