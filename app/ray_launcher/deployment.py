"""The deployment of Ray Serve that keeps a fleet: its loop, its health in Ray's dashboard, its metrics, its page."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray import serve
from ray.util.metrics import Gauge

from app.ray_launcher.arguments import parse_arguments
from app.ray_launcher.directory import API, ENGINE
from app.ray_launcher.fleet import Fleet
from app.ray_launcher.ray_cluster import RayCluster

log = logging.getLogger("ray.serve")

STEP_SECONDS = 2.0  # between two looks at the fleet
CLOSE_SECONDS = 120.0  # for all processes to end, when the application is deleted


class Carousel:
    """One replica, which holds nothing that is not in the cluster: engines and API processes live without it."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._loop: asyncio.Task[None] | None = None
        self._problem = ""  # of the last step
        self._gauges = {
            name: Gauge(f"carousel_{name}", description=text)
            for name, text in (
                ("replicas_wanted", "Engines that the API processes want."),
                ("engines", "Engines that serve."),
                ("api_processes", "API processes that serve."),
            )
        }

    async def reconfigure(self, args: dict[str, Any]) -> None:
        """Take the arguments of the application, at first and when they change."""
        arguments = parse_arguments(args)
        if self._fleet is None:
            cluster = RayCluster(arguments.name)
            await cluster.claim()
            self._fleet = Fleet(cluster, arguments)
            self._loop = asyncio.create_task(self._follow(self._fleet))
        elif arguments.name != self._fleet.arguments.name:
            raise ValueError("name cannot be changed while the application runs; delete it first")
        else:
            self._fleet.arguments = arguments

    async def check_health(self) -> None:
        """Raise `RuntimeError` if the last look at the fleet failed, so that Ray Serve starts another replica."""
        if self._problem:
            raise RuntimeError(self._problem)

    async def __call__(self, request: Any) -> dict[str, Any]:
        """Return where the processes are."""
        assert self._fleet is not None
        return self._fleet.status

    async def __del__(self) -> None:
        """End the fleet if the application is deleted. Another replica, such as one with other arguments, keeps it."""
        if self._fleet is None or self._loop is None:
            return
        self._loop.cancel()
        fleet, self._fleet = self._fleet, None
        if await asyncio.to_thread(_is_deleted, serve.get_replica_context().app_name):
            await fleet.close()

    async def _follow(self, fleet: Fleet) -> None:
        while True:
            try:
                await fleet.step()
                self._problem = ""
            except Exception as error:  # of a cluster that loses machines; the next look may succeed
                self._problem = f"the fleet cannot be looked at: {error}"
                log.exception("a look at the fleet failed")
            for name, value in (
                ("replicas_wanted", fleet.wanted or fleet.target),
                ("engines", len(fleet.addresses[ENGINE])),
                ("api_processes", len(fleet.addresses[API])),
            ):
                self._gauges[name].set(value)
            await asyncio.sleep(STEP_SECONDS)


def _is_deleted(application: str) -> bool:
    found = serve.status().applications.get(application)
    return found is None or found.status == "DELETING"


def build_application(args: dict[str, Any]) -> Any:
    """Return the application of Ray Serve. Raises `ConfigError` for arguments that cannot be honoured."""
    parse_arguments(args)
    return (
        serve.deployment(Carousel)
        .options(
            num_replicas=1,
            user_config=args,
            ray_actor_options={"num_cpus": 0},
            graceful_shutdown_timeout_s=CLOSE_SECONDS,
        )
        .bind()
    )
