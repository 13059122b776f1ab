"""Choice of the engine for a request. Pure functions of the members' loads, which are computed only as needed.

A request gets any free slot, or else joins the shortest queue of its class, as an engine lets people preempt batch work
within a step. Without a free slot, it is the better of two random members (Mitzenmacher, "The Power of Two Choices in
Randomized Load Balancing", 2001): loads are a step old, and the least loaded of all would get every request meanwhile.

The queue that counts is that of the request's tenant, as tenants take turns in an engine: beside a tenant with a
hundred requests, another one waits for its own requests, and for as many of the first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.types import ServiceClass

CANDIDATES = 2  # random members among which a request's engine is chosen
MAX_WAITING_SHARE = 2  # of an engine's slots: batch requests that wait in it
MIN_PAUSE_TOKENS = 512  # of a cached prefix, for which a request may rather pause batch work than take a free slot


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


GetLoad = Callable[[int], MemberLoad]
GetOwn = Callable[[int], int]
NOTHING: Mapping[int, int] = {}
MIN_TENANTS = 2  # that take turns in an engine with choices of others


def _no_own(member: int) -> int:
    return 0


def choose_member(
    members: Sequence[int],
    get_load: GetLoad,
    service_class: ServiceClass,
    draw: random.Random,
    cached: Mapping[int, int] = NOTHING,
    get_own: GetOwn = _no_own,
) -> int:
    """Return the member that gets a request.

    members: that take requests, at least one; a batch request that is bound late goes to one of those that take it, if
    any does. cached: tokens of the prompt in the caches of members that have any. The member with the longest prefix is
    a candidate too. It is chosen if the request gets a slot there at once, or if it is the least occupied one. get_own:
    returns the choices of the request's tenant in a member, without those that it can preempt.
    """
    chosen = list(members) if len(members) <= CANDIDATES else draw.sample(members, CANDIDATES)
    preferred, gain = None, 0
    if cached:
        longest = max([cached.get(member, 0) for member in members])
        if gain := longest - min([cached.get(member, 0) for member in chosen]):
            holders = [member for member in chosen if cached.get(member) == longest]
            preferred = draw.choice(holders or [member for member in members if cached.get(member) == longest])
            if not holders:
                chosen.append(preferred)
    candidates = [get_load(member) for member in chosen]
    if gain >= MIN_PAUSE_TOKENS:
        for load in candidates:
            if load.index == preferred and load.occupation(service_class) < 1:
                return load.index
    if not any(load.has_free_slot for load in candidates):
        if (free := first_load(members, get_load, draw, lambda load: load.has_free_slot)) is not None:
            return free.index
        if service_class is ServiceClass.BATCH:
            candidates = [load for load in candidates if load.takes_batch] or [
                first_load(members, get_load, draw, lambda load: load.takes_batch) or candidates[0]
            ]

    def rank(load: MemberLoad) -> tuple[float, ...]:
        total = load.occupation(ServiceClass.BATCH)
        is_other = load.index != preferred
        if load.has_free_slot:
            return False, is_other, total, is_other, draw.random()
        turns = min(load.occupation(service_class), MIN_TENANTS * get_own(load.index) / load.slots)  # before it
        return True, turns, load.occupation(service_class), total, is_other, draw.random()

    return min(candidates, key=rank).index


def first_load(
    members: Sequence[int], get_load: GetLoad, draw: random.Random, is_fit: Callable[[MemberLoad], bool]
) -> MemberLoad | None:
    """Return the first load that fits, from a random member on; None if none does."""
    return next(filter(is_fit, map(get_load, _from_random(members, draw))), None)


def _from_random(members: Sequence[int], draw: random.Random) -> Iterator[int]:
    start = draw.randrange(len(members))
    yield from members[start:]
    yield from members[:start]
