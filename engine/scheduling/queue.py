"""Who waits, in which order. Knows classes, priorities, arrival and waiting time; nothing of slots or pages.

Three queues by class, each ordered by (priority, arrival), so that a sequence that was paused comes back before those
who came after it. Beside them runs the overdue lane: whoever of a lower class has waited longer than its class's bound
moves there, oldest wait first. Serving one costs O(log n) whatever n waits.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import chain

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
        # In order of waiting_since, because time only moves forward; entries of those who left are skipped lazily.
        self._clock: dict[ServiceClass, deque[tuple[float, Sequence]]] = {c: deque() for c in max_wait}
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

    def push(self, sequence: Sequence, now: float) -> None:
        """Let `sequence` wait from `now` on."""
        sequence.waiting_since = now
        self._by_class[sequence.service_class].add(sequence)
        self._counts[sequence.service_class] += 1
        self._paused[sequence.service_class] += sequence.state is State.PAUSED
        if sequence.service_class in self._clock:
            self._clock[sequence.service_class].append((now, sequence))

    def remove(self, sequence: Sequence) -> None:
        """`sequence` no longer waits: it is about to run, or to be gone. Its state is still that of one who waits."""
        if sequence.is_overdue:
            del self._overdue[sequence]
            sequence.is_overdue = False
        else:
            self._by_class[sequence.service_class].remove(sequence)
        self._counts[sequence.service_class] -= 1
        self._paused[sequence.service_class] -= sequence.state is State.PAUSED

    def promote_overdue(self, now: float) -> None:
        """Move whoever has waited past its class's bound to the overdue lane."""
        for service_class, clock in self._clock.items():
            while clock and now - clock[0][0] >= self._max_wait[service_class]:
                since, sequence = clock.popleft()
                still_waits = sequence in self._by_class[service_class]
                if still_waits and not sequence.is_overdue and sequence.waiting_since == since:
                    self._by_class[service_class].remove(sequence)
                    sequence.is_overdue = True
                    self._overdue[sequence] = None

    def overdue_head(self) -> Sequence | None:
        """The longest overdue."""
        return next(iter(self._overdue), None)

    def head(self) -> Sequence | None:
        """The first of the highest class; where nobody else waits, the longest overdue."""
        for queue in self._by_class.values():
            if queue:
                return queue[0]
        return self.overdue_head()

    def in_order(self) -> Iterator[Sequence]:
        """Everybody, next first. Read only the first few: it is as long as the queue."""
        return chain(self._overdue, *self._by_class.values())
