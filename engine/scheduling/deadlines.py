"""Who will be too late, and when that is known: looked at when it can first be, not at every step."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from itertools import count

from engine.scheduling.sequence import Sequence, State

FEW = 32  # ended sequences that are not worth looking for


class Deadlines:
    """Alarms of the sequences that have a deadline, soonest first."""

    def __init__(self, least_seconds: Callable[[Sequence], float]) -> None:
        self._least_seconds = least_seconds  # that what is left of a sequence takes
        self._alarms: list[tuple[float, int, Sequence]] = []
        self._serial = count()
        self._ended = 0  # sequences with alarms that ended since those of the ended were last thrown out

    def watch(self, sequence: Sequence) -> None:
        """Look at it when its deadline can no longer be met unless it has got on by then; also after it lost work."""
        if sequence.request.deadline is not None:
            self._set(sequence, sequence.request.deadline - self._least_seconds(sequence))

    def forget(self, sequence: Sequence) -> None:
        """It has ended. Its alarm may be weeks away, and would keep it in memory until then."""
        if sequence.request.deadline is None:
            return
        self._ended += 1
        if self._ended > max(FEW, len(self._alarms) // 2):  # so that each costs but its own share of looking at all
            self._alarms = [alarm for alarm in self._alarms if alarm[2].state is not State.FINISHED]
            heapq.heapify(self._alarms)
            self._ended = 0

    def _set(self, sequence: Sequence, alarm: float) -> None:
        heapq.heappush(self._alarms, (alarm, next(self._serial), sequence))

    def too_late(self, now: float) -> Iterator[tuple[Sequence, str]]:
        """Who cannot make it any more, and why, in numbers."""
        while self._alarms and self._alarms[0][0] <= now:
            _, _, sequence = heapq.heappop(self._alarms)
            deadline = sequence.request.deadline
            if sequence.state is State.FINISHED or deadline is None:
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
