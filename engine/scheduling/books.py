"""Counters of the scheduler, the engine load built from them, and consistency checks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from engine.scheduling.sequence import State
from engine.types import Counters, Load, Mechanism, PageCounts, Phase, ServiceClass

if TYPE_CHECKING:
    from engine.scheduling.scheduler import Scheduler


MECHANISMS = {Mechanism.SWAP: 0, Mechanism.PARTIAL: 1, Mechanism.RECOMPUTE: 2}  # in the order of `Counters.preemptions`


class ByClass:
    """One count for each service class. Read in every step, so updated where it changes."""

    def __init__(self) -> None:
        self._counts = [0] * len(ServiceClass)

    def change(self, service_class: ServiceClass, by: int) -> None:
        """Add `by` to the count of a class."""
        self._counts[service_class] += by

    def __getitem__(self, service_class: ServiceClass) -> int:
        return self._counts[service_class]

    def all(self) -> tuple[int, int, int]:
        """Return the counts in the order of the classes."""
        interactive, standard, batch = self._counts
        return interactive, standard, batch


class Totals:
    """Counters that only grow."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._preemptions = tuple([0] * len(MECHANISMS) for _ in ServiceClass)

    def add(self, name: str, by: int = 1) -> None:
        """Add `by` to `name`, a field of `Counters`."""
        self._sums[name] += by

    def __getitem__(self, name: str) -> int:
        return self._sums[name]

    def preempted(self, service_class: ServiceClass, mechanism: Mechanism) -> None:
        """Count a preemption."""
        self._preemptions[service_class][MECHANISMS[mechanism]] += 1

    def counters(self) -> Counters:
        """Return the counters in the form that is sent to other processes."""
        preemptions = tuple((swap, partial, recompute) for swap, partial, recompute in self._preemptions)
        return Counters(**self._sums, preemptions=preemptions)


def load_of(scheduler: Scheduler) -> Load:
    """Return the engine's current load and counters."""
    pool, host = scheduler.memory.pool, scheduler.memory.host
    return Load(
        running=scheduler.running_by_class.all(),
        waiting=scheduler.waiting.fresh.all(),
        paused=scheduler.waiting.paused.all(),
        pages=PageCounts(pool.total, pool.held, pool.cached, pool.free, host.used, host.total),
        counters=scheduler.totals.counters(),
    )


def check_integrity(scheduler: Scheduler) -> None:
    """Check slots, pages, host pages and queue against every sequence.

    Raises `IntegrityError` or `AssertionError`. The cost grows with all pages and sequences.
    """
    alive = [sequence for choices in scheduler.requests.values() for sequence in choices]
    scheduler.memory.pool.check_integrity(sequence.page_table for sequence in alive)
    scheduler.memory.host.check_integrity([*(s.host_pages for s in alive), scheduler.moves.spent_host_pages])
    slots, free = scheduler.slots, scheduler.free_slots
    occupied = {slot for slot, sequence in enumerate(slots) if sequence is not None}
    assert occupied.isdisjoint(free), (occupied, free)
    assert len(occupied) + len(free) == len(slots)
    assert {s.slot for s in scheduler.running} == occupied
    assert {id(s) for s in alive if s.state is State.RUNNING} == {id(s) for s in scheduler.running}
    by_class = Counter(s.service_class for s in scheduler.running)
    assert scheduler.running_by_class.all() == tuple(by_class[c] for c in ServiceClass)
    waiting = [s for s in alive if s.state in (State.WAITING, State.PAUSED)]
    in_order = list(scheduler.policy.in_order())
    assert len(waiting) == len(scheduler.waiting) == len(in_order), (waiting, in_order)
    assert set(waiting) == set(in_order)
    for state, counted in ((State.WAITING, scheduler.waiting.fresh), (State.PAUSED, scheduler.waiting.paused)):
        by_class = Counter(s.service_class for s in waiting if s.state is state)
        assert counted.all() == tuple(by_class[c] for c in ServiceClass)
    assert all(s.page_table == [] for s in alive if s.state is not State.RUNNING)
    assert all((s.phase.state == "running") == (s.state is State.RUNNING) for s in alive)
    if not scheduler.flights:
        assert all((s.phase is Phase.DECODE) == (s.num_uncomputed <= 1) for s in scheduler.running)
    lacking = {id(s) for s in scheduler.running if len(s.page_table) < s.pages_needed and s.num_tokens < s.most_tokens}
    assert lacking <= {id(s) for s in scheduler.outgrown}
