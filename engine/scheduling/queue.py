"""Who waits, in which order. Knows classes, priorities, arrival and waiting time; nothing of slots or pages.

Three queues by class, each ordered by (priority, arrival), so that a sequence that was paused comes back before those
who came after it. Whoever of a lower class has waited longer than its class's bound is in the overdue lane too, in the
order in which they became overdue; it keeps its place in its class, so that the lane can only help it. Serving one
costs O(log n) whatever n waits.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, count

from sortedcontainers import SortedKeyList

from engine.scheduling.sequence import Sequence, State
from engine.types import ServiceClass


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return (sequence.request.priority, sequence.arrival, sequence.choice)


class WaitQueue:
    """All waiting and paused sequences."""

    def __init__(self, max_wait: dict[ServiceClass, float]) -> None:
        self._max_wait = max_wait  # seconds; a class that is missing is never overdue
        self._by_class: dict[ServiceClass, SortedKeyList[Sequence, tuple[int, int, int]]] = {
            c: SortedKeyList(key=_order) for c in ServiceClass
        }
        self._overdue: OrderedDict[Sequence, None] = OrderedDict()
        # When each becomes overdue, soonest first. Entries of those who left are dropped when they come to the top.
        self._alarms: list[tuple[float, int, Sequence]] = []
        self._serial = count()
        self._counts = dict.fromkeys(ServiceClass, 0)
        self._paused = dict.fromkeys(ServiceClass, 0)

    def __len__(self) -> int:
        return sum(self._counts.values())

    def count(self, service_class: ServiceClass) -> int:
        """How many of a class wait, paused ones included."""
        return self._counts[service_class]

    def count_paused(self, service_class: ServiceClass) -> int:
        """How many of a class were paused and wait to go on."""
        return self._paused[service_class]

    def push(self, sequence: Sequence) -> None:
        """Let `sequence` wait; its clock runs from `waiting_since`."""
        self._by_class[sequence.service_class].add(sequence)
        self._counts[sequence.service_class] += 1
        self._paused[sequence.service_class] += sequence.state is State.PAUSED
        bound = self._max_wait.get(sequence.service_class, math.inf)
        if bound < math.inf:
            heapq.heappush(self._alarms, (sequence.waiting_since + bound, next(self._serial), sequence))

    def remove(self, sequence: Sequence) -> None:
        """`sequence` no longer waits: it is about to run, or to be gone. Its state is still that of one who waits."""
        self._overdue.pop(sequence, None)
        sequence.is_overdue = False
        self._by_class[sequence.service_class].remove(sequence)
        self._counts[sequence.service_class] -= 1
        self._paused[sequence.service_class] -= sequence.state is State.PAUSED

    def promote_overdue(self, now: float) -> None:
        """Let whoever has waited past its class's bound into the overdue lane."""
        while self._alarms:
            due, _, sequence = self._alarms[0]
            is_stale = (
                sequence.state not in (State.WAITING, State.PAUSED)
                or sequence.is_overdue
                or due != sequence.waiting_since + self._max_wait[sequence.service_class]
            )
            if not is_stale:
                if due > now:
                    return
                sequence.is_overdue = True
                self._overdue[sequence] = None
            heapq.heappop(self._alarms)

    @property
    def num_overdue(self) -> int:
        """How many are in the overdue lane."""
        return len(self._overdue)

    def overdue_head(self) -> Sequence | None:
        """Who became overdue first."""
        return next(iter(self._overdue), None)

    def head(self) -> Sequence | None:
        """The first of the highest class."""
        return next((queue[0] for queue in self._by_class.values() if queue), None)

    def in_order(self) -> Iterator[Sequence]:
        """Everybody, next first. Read only the first few: it is as long as the queue."""
        return chain(self._overdue, (s for queue in self._by_class.values() for s in queue if not s.is_overdue))
