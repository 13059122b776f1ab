"""Snapshots: the watchers of engines' slots and queues, without which the engines make no snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.engine_client.member import EngineMember
from engine.ipc import StepResult
from engine.load import EngineLoad, Snapshot

Watcher = Callable[[int, Snapshot, EngineLoad], None]  # called with an engine's number


class Snapshots:
    """Watchers of all members."""

    def __init__(self, members: Mapping[int, EngineMember]) -> None:
        """members: the current ones, by number."""
        self._members = members
        self._watchers: set[Watcher] = set()

    @property
    def are_watched(self) -> bool:
        """Return whether there is a watcher."""
        return bool(self._watchers)

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with the engine's number and each snapshot from now on."""
        for member in self._members.values() if not self._watchers else ():
            member.watch(True)
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Stop calling `watcher`."""
        self._watchers.discard(watcher)
        for member in self._members.values() if not self._watchers else ():
            member.watch(False)

    def publish(self, index: int, result: StepResult) -> None:
        """Pass on the snapshot of a step, if there is one."""
        if result.snapshot is not None:
            for watcher in list(self._watchers):
                watcher(index, result.snapshot, result.load)
