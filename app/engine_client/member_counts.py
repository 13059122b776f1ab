"""Choices of this process that each member has, by class. Exact at any moment, unlike the load reports of engines."""

from __future__ import annotations

from dataclasses import dataclass

from app.engine_client.router import MemberLoad
from engine.types import EngineLoad, ServiceClass


@dataclass(frozen=True, slots=True)
class ReadyMember:
    """Member with an engine. report: its last load report; None: there was none."""

    index: int
    slots: int
    report: EngineLoad | None


class MemberCounts:
    """Two counts for each member and class: all choices that it has, and those that no load report counts yet."""

    def __init__(self, members: int) -> None:
        self._all = [[0] * len(ServiceClass) for _ in range(members)]
        self._unreported = [[0] * len(ServiceClass) for _ in range(members)]

    def add(self, member: int, service_class: ServiceClass, choices: int) -> None:
        """Count choices that were sent to a member."""
        self._all[member][service_class] += choices
        self._unreported[member][service_class] += choices

    def report(self, member: int, service_class: ServiceClass, choices: int) -> None:
        """Count choices that the member's load reports contain from now on."""
        self._unreported[member][service_class] -= choices

    def end(self, member: int, service_class: ServiceClass) -> None:
        """Count a choice that has ended and was reported."""
        self._all[member][service_class] -= 1

    def clear(self, member: int) -> None:
        """Forget the choices of a member that has lost its engine."""
        self._all[member] = [0] * len(ServiceClass)
        self._unreported[member] = [0] * len(ServiceClass)

    def total(self, member: int) -> int:
        """Return the number of choices that a member has."""
        return sum(self._all[member])

    def load(self, member: ReadyMember) -> MemberLoad:
        """Return the load of a member: its choices, or those of its last report and later ones if these are more.

        A report may contain requests of other processes. Grammars that are being compiled are in no report.
        """
        first, second, third = self._all[member.index]
        if (report := member.report) is not None:
            running, waiting, paused = report.running, report.waiting, report.paused
            later = self._unreported[member.index]
            first = max(first, running[0] + waiting[0] + paused[0] + later[0])
            second = max(second, running[1] + waiting[1] + paused[1] + later[1])
            third = max(third, running[2] + waiting[2] + paused[2] + later[2])
        return MemberLoad(member.index, member.slots, (first, second, third))
