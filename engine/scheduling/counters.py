"""Counters of the scheduler."""

from __future__ import annotations

from collections import Counter

from engine.drafting.speculator import MAX_DRAFTS
from engine.load import Counters
from engine.types import PreemptionMode, ServiceClass

MODE_INDEX = {
    PreemptionMode.SWAP: 0,
    PreemptionMode.PARTIAL: 1,
    PreemptionMode.RECOMPUTE: 2,
}  # in the order of `Counters.preemptions`


class ClassCounts:
    """One count for each service class. Read in every step, so updated where it changes."""

    def __init__(self) -> None:
        self._counts = [0] * len(ServiceClass)

    def add(self, service_class: ServiceClass, by: int) -> None:
        """Add `by` to the count of a class."""
        self._counts[service_class] += by

    def __getitem__(self, service_class: ServiceClass) -> int:
        return self._counts[service_class]

    def as_tuple(self) -> tuple[int, int, int]:
        """Return the counts in the order of the classes."""
        interactive, standard, batch = self._counts
        return interactive, standard, batch


class CumulativeCounters:
    """Counters that only grow."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._preemptions = tuple([0] * len(MODE_INDEX) for _ in ServiceClass)
        self._accepted = [0] * MAX_DRAFTS  # by position in a draft

    def add(self, name: str, by: int = 1) -> None:
        """Add `by` to `name`, a field of `Counters`."""
        self._sums[name] += by

    def __getitem__(self, name: str) -> int:
        return self._sums[name]

    def count_preemption(self, service_class: ServiceClass, mechanism: PreemptionMode) -> None:
        """Count a preemption."""
        self._preemptions[service_class][MODE_INDEX[mechanism]] += 1

    def count_draft(self, tokens: int, accepted: int) -> None:
        """Count a draft, of which the first `accepted` tokens were right."""
        self.add("drafts")
        self.add("drafted_tokens", tokens)
        for position in range(accepted):
            self._accepted[position] += 1

    def to_counters(self) -> Counters:
        """Return the counters in the form that is sent to other processes."""
        preemptions = tuple((swap, partial, recompute) for swap, partial, recompute in self._preemptions)
        return Counters(**self._sums, preemptions=preemptions, accepted_by_position=tuple(self._accepted))
