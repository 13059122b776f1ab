"""Choice of the engine for a request. Pure functions of the members' loads.

An engine lets people preempt batch work within a step, so a person needs a free slot, or else the shortest queue of its
class. Without a free slot, the better of two random members is taken (Mitzenmacher, "The Power of Two Choices in
Randomized Load Balancing", 2001): loads are a step old, and the least loaded of all would get every request meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from engine.types import ServiceClass

CANDIDATES = 2  # random members among which a request's engine is chosen
MAX_WAITING_SHARE = 2  # of an engine's slots: batch requests that wait in it


@dataclass(frozen=True, slots=True)
class MemberLoad:
    """Load of one member. demand: choices that run or wait there, by class."""

    index: int
    slots: int
    demand: tuple[int, int, int]

    @property
    def has_free_slot(self) -> bool:
        """Return whether a new choice gets a slot that no other has."""
        return sum(self.demand) < self.slots

    @property
    def waiting(self) -> int:
        """Return the number of choices beyond the slots."""
        return max(0, sum(self.demand) - self.slots)

    @property
    def takes_batch(self) -> bool:
        """Return whether a batch request may wait there; others wait until an engine is about to need them."""
        return self.waiting < MAX_WAITING_SHARE * self.slots

    def occupation(self, service_class: ServiceClass) -> float:
        """Return the choices for each slot that a request of `service_class` cannot preempt."""
        return sum(self.demand[: service_class + 1]) / self.slots


def choose_member(
    loads: Sequence[MemberLoad], service_class: ServiceClass, draw: random.Random, preferred: int | None = None
) -> int:
    """Return the index of the member that gets a request.

    loads: of the members that take requests, at least one. preferred: member that probably has the request's prefix in
    its cache; it is chosen if it has a free slot, or is the least occupied candidate.
    """
    candidates = list(loads) if len(loads) <= CANDIDATES else draw.sample(loads, CANDIDATES)
    candidates += [load for load in loads if load.index == preferred and load not in candidates]
    if service_class is not ServiceClass.BATCH and not any(load.has_free_slot for load in candidates):
        candidates = [load for load in loads if load.has_free_slot] or candidates

    def rank(load: MemberLoad) -> tuple[bool, float, float, bool, float]:
        total = load.occupation(ServiceClass.BATCH)
        is_other = load.index != preferred
        if load.has_free_slot:
            return False, is_other, total, is_other, draw.random()
        return True, load.occupation(service_class), total, is_other, draw.random()

    return min(candidates, key=rank).index
