"""Who will be too late, and when that is known: looked at when it can first be, not at every step."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from itertools import count

from engine.scheduling.sequence import Sequence

FEW = 32  # alarms of no use that are not worth looking for


class Deadlines:
    """Alarms of the sequences that have a deadline, soonest first."""

    def __init__(self, least_seconds: Callable[[Sequence], float]) -> None:
        self._least_seconds = least_seconds  # that what is left of a sequence takes
        self._alarms: list[tuple[float, int, Sequence]] = []
        self._serial = count()
        self._rings: dict[Sequence, float] = {}  # when each is looked at next; its other alarms are of no use

    def watch(self, sequence: Sequence) -> None:
        """Look at it when its deadline can no longer be met unless it has got on by then; also after it lost work."""
        deadline = sequence.request.deadline
        if deadline is not None:
            alarm = deadline - self._least_seconds(sequence)
            if alarm < self._rings.get(sequence, math.inf):
                self._set(sequence, alarm)

    def forget(self, sequence: Sequence) -> None:
        """It has ended. Its alarms may be weeks away, and would keep it in memory until then."""
        if self._rings.pop(sequence, None) is not None:
            self._throw_out()

    def _set(self, sequence: Sequence, alarm: float) -> None:
        self._rings[sequence] = alarm
        heapq.heappush(self._alarms, (alarm, next(self._serial), sequence))
        self._throw_out()

    def _throw_out(self) -> None:
        """Alarms of no use, once they are most of them, so that each costs but its own share of looking at all."""
        if len(self._alarms) > FEW + 2 * len(self._rings):
            self._alarms = [one for one in self._alarms if self._rings.get(one[2]) == one[0]]
            heapq.heapify(self._alarms)

    def too_late(self, now: float) -> Iterator[tuple[Sequence, str]]:
        """Who cannot make it any more, and why, in numbers."""
        while self._alarms and self._alarms[0][0] <= now:
            alarm, _, sequence = heapq.heappop(self._alarms)
            deadline = sequence.request.deadline
            if self._rings.get(sequence) != alarm or deadline is None:
                continue
            least = self._least_seconds(sequence)
            if deadline - least > now:  # as `_set` has it, or rounding would ring it for ever
                self._set(sequence, deadline - least)
            elif deadline <= now:
                yield sequence, "the deadline has passed"
            else:
                yield (
                    sequence,
                    f"the deadline cannot be met: {1000 * (deadline - now):.1f} ms are left, "
                    f"and what is missing takes {1000 * least:.1f} ms at the least",
                )

    def next_alarm(self) -> float:
        """When somebody must be looked at; infinity for never."""
        return self._alarms[0][0] if self._alarms else math.inf
