"""The scheduler's books: in one value for others, and held against every sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.scheduling.sequence import State
from engine.types import Counters, Load, Mechanism, PageCounts, Phase, ServiceClass

if TYPE_CHECKING:
    from engine.scheduling.scheduler import Scheduler


class Waiting:
    """How many wait, by class, and how many of these were paused."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[ServiceClass, bool]] = Counter()

    def change(self, service_class: ServiceClass, is_paused: bool, by: int) -> None:
        """One more, or one less."""
        self._counts[service_class, is_paused] += by

    def count(self, service_class: ServiceClass, *, paused: bool) -> int:
        """Of a class, those who were paused or those who never ran."""
        return self._counts[service_class, paused]

    def __len__(self) -> int:
        return self._counts.total()


class Totals:
    """What only grows."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._preemptions: Counter[tuple[ServiceClass, Mechanism]] = Counter()

    def add(self, name: str, by: int = 1) -> None:
        """`name` is a field of `Counters`."""
        self._sums[name] += by

    def __getitem__(self, name: str) -> int:
        return self._sums[name]

    def preempted(self, service_class: ServiceClass, mechanism: Mechanism) -> None:
        """One of a class was paused so."""
        self._preemptions[service_class, mechanism] += 1

    def counters(self) -> Counters:
        """As others read them."""
        swap, partial, recompute = Mechanism
        return Counters(
            **self._sums,
            preemptions=tuple(
                (self._preemptions[c, swap], self._preemptions[c, partial], self._preemptions[c, recompute])
                for c in ServiceClass
            ),
        )


def load_of(scheduler: Scheduler) -> Load:
    """The books in one value."""
    running = Counter(sequence.service_class for sequence in scheduler.running)
    memory, waiting = scheduler.memory, scheduler.waiting
    pool, host = memory.pool, memory.host

    def by_class(count: Callable[[ServiceClass], int]) -> tuple[int, int, int]:
        return count(ServiceClass.INTERACTIVE), count(ServiceClass.STANDARD), count(ServiceClass.BATCH)

    return Load(
        running=by_class(running.__getitem__),
        waiting=by_class(lambda c: waiting.count(c, paused=False)),
        paused=by_class(lambda c: waiting.count(c, paused=True)),
        pages=PageCounts(pool.total, pool.held, pool.cached, pool.free, host.used, host.total),
        counters=scheduler.totals.counters(),
    )


def check_integrity(scheduler: Scheduler) -> None:
    """Hold slots, pages, host pages and queue against every sequence. Raises `IntegrityError`. O(everything)."""
    alive = [sequence for choices in scheduler.requests.values() for sequence in choices]
    scheduler.memory.pool.check_integrity(sequence.page_table for sequence in alive)
    scheduler.memory.host.check_integrity([*(s.host_pages for s in alive), scheduler.moves.spent_host_pages])
    slots, free = scheduler.slots, scheduler.free_slots
    occupied = {slot for slot, sequence in enumerate(slots) if sequence is not None}
    assert occupied.isdisjoint(free), (occupied, free)
    assert len(occupied) + len(free) == len(slots)
    assert {s.slot for s in scheduler.running} == occupied
    assert {id(s) for s in alive if s.state is State.RUNNING} == {id(s) for s in scheduler.running}
    waiting = [s for s in alive if s.state in (State.WAITING, State.PAUSED)]
    in_order = list(scheduler.policy.in_order())
    assert len(waiting) == len(scheduler.waiting) == len(in_order), (waiting, in_order)
    assert set(waiting) == set(in_order)
    assert all(s.page_table == [] for s in alive if s.state is not State.RUNNING)
    assert all((s.phase.state == "running") == (s.state is State.RUNNING) for s in alive)
    if not scheduler.flights:
        assert all((s.phase is Phase.DECODE) == (s.num_uncomputed <= 1) for s in scheduler.running)
    lacking = {id(s) for s in scheduler.running if len(s.page_table) < s.pages_needed and s.num_tokens < s.most_tokens}
    assert lacking <= {id(s) for s in scheduler.outgrown}
