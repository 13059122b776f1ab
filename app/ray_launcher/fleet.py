"""Fleet: keeps as many engines and API processes in a cluster as are wanted. Independent of Ray.

Processes are named by the service, their kind, a number and the generation of their options. So a new fleet, after the
death of the former, finds those that there are, and replaces those with other options.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Set
from typing import Any, Protocol

from app.ray_launcher.arguments import Arguments
from app.ray_launcher.directory import API, ENGINE
from app.ray_launcher.scaling import engine_target

log = logging.getLogger("ray.serve")  # which has the log of the replica


class Cluster(Protocol):
    """Cluster of a service, which runs its processes."""

    async def names(self) -> set[str]:
        """Return the names of the service's processes, including those that start or end."""

    async def start(self, kind: str, name: str, number: int, arguments: Arguments) -> None:
        """Start a process. Returns at once."""

    async def stop(self, name: str) -> None:
        """Let a process end with its requests, and wait for its end."""

    async def release(self, generations: Set[str]) -> None:
        """Return the resources that are reserved for processes of all other generations, which have ended."""

    async def addresses(self, kind: str) -> Mapping[str, str]:
        """Return the addresses of the processes that serve, by name."""

    async def wanted(self, address: str, key: str | None) -> int | None:
        """Return the number of engines that an API process wants; None if it has no opinion. key: for its metrics."""

    async def claim(self) -> None:
        """Take the processes over from a former fleet, which may still exist for a while."""

    async def is_owner(self) -> bool:
        """Return whether no other fleet has taken the processes over."""

    async def close(self) -> None:
        """Forget the service, whose processes have ended."""


class Fleet:
    """Processes of one service."""

    def __init__(self, cluster: Cluster, arguments: Arguments) -> None:
        self.arguments = arguments
        self.target = arguments.engines.min  # number of engines that there should be
        self.wanted: int | None = None  # by the API processes; None: no opinion
        self.addresses: dict[str, dict[str, str]] = {ENGINE: {}, API: {}}  # of processes that serve
        self._cluster = cluster
        self._ending: dict[str, asyncio.Task[None]] = {}

    async def step(self) -> None:
        """Start what is missing, and end what is not wanted any more. A fleet that was replaced only looks."""
        cluster, arguments = self._cluster, self.arguments
        self.addresses = {kind: dict(await cluster.addresses(kind)) for kind in (ENGINE, API)}
        key = arguments.api.options.get("metrics_key") or arguments.api.options.get("operator_key")
        wanted = await asyncio.gather(*(cluster.wanted(each, key) for each in self.addresses[API].values()))
        self.wanted = max((each for each in wanted if each is not None), default=None)
        if not await cluster.is_owner():
            return
        names = await cluster.names()
        current = self._names(ENGINE, arguments.engines.limit).keys() & names - self._ending.keys()
        before, self.target = self.target, self._target(wanted, len(current))
        if before != self.target:
            log.info("engines wanted: %d, before %d", self.target, before)
        desired = self._names(ENGINE, self.target) | self._names(API, arguments.api.num)
        for name in names - desired.keys() - self._ending.keys():
            self._end(name)
        for name in desired.keys() - names - self._ending.keys():
            log.info("%s is started", name)
            kind, number = desired[name]
            await cluster.start(kind, name, number, arguments)
        await cluster.release({arguments.generation, *(name.rpartition("-")[2] for name in names)})

    async def close(self) -> None:
        """End all processes unless the fleet was replaced: those of the API first, as their answers need engines."""
        if not await self._cluster.is_owner():
            return
        for kind in (API, ENGINE):
            for name in await self._cluster.names():
                if name.startswith(f"{self.arguments.name}-{kind}-") and name not in self._ending:
                    self._end(name)
            await asyncio.gather(*self._ending.values())
        await self._cluster.close()

    @property
    def status(self) -> dict[str, Any]:
        """Return the state of the fleet, for operators."""
        return {
            "model": self.arguments.model,
            "engines_wanted": self.target,
            "engines": self.addresses[ENGINE],
            "apis": {name: f"http://{address}" for name, address in self.addresses[API].items()},
        }

    def _target(self, wanted: list[int | None], present: int) -> int:
        engines = self.arguments.engines
        return engine_target(wanted, present, engines.min, engines.limit)

    def _names(self, kind: str, number: int) -> dict[str, tuple[str, int]]:
        """Return the names of the first processes of a kind, with the kind and the number of each."""
        service, generation = self.arguments.name, self.arguments.generation
        return {f"{service}-{kind}-{each}-{generation}": (kind, each) for each in range(number)}

    def _end(self, name: str) -> None:
        log.info("%s is ended", name)
        task = self._ending[name] = asyncio.create_task(self._cluster.stop(name))
        task.add_done_callback(lambda _: self._ending.pop(name))
