"""Placement groups of a service's engines: one for each generation of them that asks for a placement.

A group has a bundle for each engine that there may be, so that a fleet that grows has room on the machines that the
strategy allows. It belongs to the cluster, as the actors do, and is found by its name after the death of the fleet.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

from ray.util import get_placement_group, placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from app.ray_launcher.arguments import Arguments
from app.ray_launcher.directory import ENGINE


class PlacementGroups:
    """Placement groups of one service. Its methods wait for the cluster."""

    def __init__(self, service: str) -> None:
        self._prefix = f"{service}-{ENGINE}-"

    def strategy(self, arguments: Arguments, number: int) -> PlacementGroupSchedulingStrategy | Literal["SPREAD"]:
        """Return where Ray places the engine with a number. Makes the group of its generation if there is none."""
        if arguments.engines.placement is None:
            return "SPREAD"
        return PlacementGroupSchedulingStrategy(self._group(arguments), placement_group_bundle_index=number)

    def release(self, generations: Set[str]) -> None:
        """Remove the groups of all other generations."""
        names = (each["name"] for each in placement_group_table().values() if each["state"] != "REMOVED")
        for name in names:
            if name.startswith(self._prefix) and name.removeprefix(self._prefix) not in generations:
                remove_placement_group(get_placement_group(name))

    def _group(self, arguments: Arguments) -> PlacementGroup:
        engines, name = arguments.engines, f"{self._prefix}{arguments.generation}"
        try:
            return get_placement_group(name)
        except ValueError:
            bundles = [engines.bundle] * engines.limit
            return placement_group(bundles, engines.placement, name, lifetime="detached")
