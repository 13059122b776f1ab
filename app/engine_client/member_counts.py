"""Choices of this process that each member has, by class. Exact at any moment, unlike the load reports of engines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from app.engine_client.router import MemberLoad
from engine.load import EngineLoad
from engine.types import ServiceClass


@dataclass(frozen=True, slots=True)
class ReadyMember:
    """Member with an engine. report: its last load report; None: there was none. connections: of API processes."""

    index: int
    slots: int
    report: EngineLoad | None
    connections: int = 1


class MemberCounts:
    """Counts for each member and class: the choices that run or wait there, those of each tenant, and those that no
    load report counts yet. Paused choices are counted apart, as they need no slot.
    """

    def __init__(self) -> None:
        self._all: defaultdict[int, list[int]] = defaultdict(_no_choices)
        self._unreported: defaultdict[int, list[int]] = defaultdict(_no_choices)
        self._of_tenants: defaultdict[int, dict[str, list[int]]] = defaultdict(dict)  # without tenants that have none
        self._paused: defaultdict[int, int] = defaultdict(int)  # choices that their clients have paused
        self._waiting: dict[int, int] = {}  # choices beyond the slots of each member, as last computed

    @property
    def waiting_in_members(self) -> int:
        """Return the number of choices beyond the members' slots, as known from their last loads."""
        return sum(self._waiting.values())

    def add(self, member: int, tenant: str, service_class: ServiceClass, choices: int) -> None:
        """Count choices that were sent to a member."""
        self._all[member][service_class] += choices
        self._of_tenants[member].setdefault(tenant, _no_choices())[service_class] += choices
        self._unreported[member][service_class] += choices

    def report(self, member: int, service_class: ServiceClass, choices: int) -> None:
        """Count choices that the member's load reports contain from now on."""
        self._unreported[member][service_class] -= choices

    def remove(self, member: int, tenant: str, service_class: ServiceClass, choices: int = 1) -> None:
        """Count choices that have ended, or are paused or change their class, and were reported."""
        self._all[member][service_class] -= choices
        counts = self._of_tenants[member][tenant]
        counts[service_class] -= choices
        if not any(counts):
            del self._of_tenants[member][tenant]

    def add_paused(self, member: int, choices: int) -> None:
        """Count paused choices that a member has, or that have left it if `choices` is negative."""
        self._paused[member] += choices

    def clear(self, member: int) -> None:
        """Forget the choices of a member that has lost its engine."""
        for counts in (self._all, self._unreported, self._of_tenants, self._paused, self._waiting):
            counts.pop(member, None)

    def total(self, member: int) -> int:
        """Return the number of choices that a member has."""
        return (sum(self._all[member]) if member in self._all else 0) + self._paused.get(member, 0)

    def of_tenant(
        self, members: Mapping[int, ReadyMember], tenant: str, service_class: ServiceClass, index: int
    ) -> int:
        """Return the choices of a tenant in a member that a request of `service_class` cannot preempt.

        Each other process has probably as many of them as this one.
        """
        counts = self._of_tenants[index].get(tenant)
        return members[index].connections * sum(counts[: service_class + 1]) if counts else 0

    def load(self, member: ReadyMember) -> MemberLoad:
        """Return the load of a member: its choices, or those of its last report and later ones if these are more.

        A report may contain requests of other processes. Each of these has probably sent as much since then as this
        one; otherwise all would send their requests to the engine that was idle when it reported. Grammars that are
        being compiled are in no report.
        """
        index, slots = member.index, member.slots
        first, second, third = self._all[index]
        if (report := member.report) is not None:
            running, waiting, paused = report.running, report.waiting, report.paused
            later, times = self._unreported[index], member.connections
            first = max(first, running[0] + waiting[0] + paused[0] + times * later[0])
            second = max(second, running[1] + waiting[1] + paused[1] + times * later[1])
            third = max(third, running[2] + waiting[2] + paused[2] + times * later[2])
        self._waiting[index] = max(0, first + second + third - slots)
        return MemberLoad(index, slots, (first, second, third))


def _no_choices() -> list[int]:
    return [0] * len(ServiceClass)
