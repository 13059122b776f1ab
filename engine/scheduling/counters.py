"""Counters of the scheduler."""

from __future__ import annotations

from collections import Counter

from engine.types import Counters, Mechanism, ServiceClass

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
