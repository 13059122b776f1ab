"""RayCluster: the processes of a service as named actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import logging
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping, Set
from typing import Any

import ray
from ray.util import list_named_actors

from app.ray_launcher.arguments import Arguments
from app.ray_launcher.directory import ENGINE, NAMESPACE, Directory
from app.ray_launcher.placement_groups import PlacementGroups
from app.ray_launcher.process_actor import STOP_SECONDS, ProcessActor
from app.ray_launcher.scaling import read_wanted

log = logging.getLogger("ray.serve")

TOKEN_BYTES = 32
METRICS_SECONDS = 2.0  # for an answer of an API process
# Actors live without the one that has started them, and Ray starts them again without limit.
LASTING = {"namespace": NAMESPACE, "lifetime": "detached", "max_restarts": -1, "get_if_exists": True}


class RayCluster:
    """The cluster that this process belongs to."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._groups = PlacementGroups(service)
        self._fleet = secrets.token_hex(8)  # name of this process's fleet in the directory
        self._directory = (
            ray.remote(Directory)
            .options(name=f"{service}-directory", num_cpus=0, max_task_retries=-1, **LASTING)
            .remote(secrets.token_hex(TOKEN_BYTES))
        )

    async def names(self) -> set[str]:
        """Do as `Cluster.names`."""
        found = await asyncio.to_thread(list_named_actors, all_namespaces=True)
        names = {each["name"] for each in found if each["namespace"] == NAMESPACE}
        return {name for name in names if name.startswith(f"{self._service}-")} - {f"{self._service}-directory"}

    async def start(self, kind: str, name: str, number: int, arguments: Arguments) -> None:
        """Do as `Cluster.start`. Ray finds a machine with the resources, or waits for one."""
        api, engines = arguments.api, arguments.engines
        options: dict[str, Any] = {"num_cpus": api.num_cpus, "scheduling_strategy": "SPREAD"}
        command, values = ["serve", arguments.model], api.options | {"host": api.host, "port": api.port + number}
        if kind == ENGINE:
            command, values = ["engine", arguments.model], arguments.engine_values
            options = {"num_cpus": engines.num_cpus, "num_gpus": engines.num_gpus, "resources": engines.resources}
            options["scheduling_strategy"] = await asyncio.to_thread(self._groups.strategy, arguments, number)
        # `stop` waits on a thread of its own, while others are answered
        actor = ray.remote(ProcessActor).options(name=name, max_concurrency=4, **options, **LASTING)
        actor.remote(kind, self._service, name, command, values)

    async def stop(self, name: str) -> None:
        """Do as `Cluster.stop`."""
        try:
            actor = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:  # it has ended
            return
        try:
            await asyncio.wait_for(actor.stop.remote(), STOP_SECONDS)
        except (TimeoutError, ray.exceptions.RayError) as error:  # it still waits for resources, or has died
            log.warning("%s is killed: %s", name, type(error).__name__)
        ray.kill(actor, no_restart=True)

    async def release(self, generations: Set[str]) -> None:
        """Do as `Cluster.release`."""
        await asyncio.to_thread(self._groups.release, generations)

    async def addresses(self, kind: str) -> Mapping[str, str]:
        """Do as `Cluster.addresses`."""
        found: dict[str, str] = await self._directory.addresses.remote(kind)
        return found

    async def wanted(self, address: str, key: str | None) -> int | None:
        """Do as `Cluster.wanted`."""
        return await asyncio.to_thread(_read_metrics, f"http://{address}/metrics", key)

    async def claim(self) -> None:
        """Do as `Cluster.claim`."""
        await self._directory.claim.remote(self._fleet)

    async def is_owner(self) -> bool:
        """Do as `Cluster.is_owner`."""
        owner: str = await self._directory.owner.remote()
        if not owner:  # the directory was started again
            await self.claim()
        return owner in ("", self._fleet)

    async def close(self) -> None:
        """Do as `Cluster.close`."""
        await self.release(set())
        ray.kill(self._directory, no_restart=True)


def _read_metrics(url: str, key: str | None) -> int | None:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=METRICS_SECONDS) as answer:
            return read_wanted(answer.read().decode())
    except (OSError, urllib.error.URLError) as error:
        log.warning("the metrics of %s cannot be read: %s", url, error)
        return None
