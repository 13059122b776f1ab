"""Engines and API processes of a service in a cluster that is a few sets of names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from typing import Any

import pytest

from app.ray_launcher.arguments import Arguments, parse_arguments
from app.ray_launcher.directory import API, ENGINE
from app.ray_launcher.fleet import Fleet
from tests.limits import HANG_SECONDS


class FakeCluster:
    """Cluster whose processes serve as soon as they are started. They end when the test lets them."""

    def __init__(self) -> None:
        self.processes: dict[str, str] = {}  # kinds by name
        self.ports: list[int] = []
        self.wishes: dict[str, int | None] = {}  # by API process
        self.keys: set[str | None] = set()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.stopped: list[str] = []
        self.reserved: set[str] = set()  # generations
        self.is_owned = True
        self.is_closed = False

    async def names(self) -> set[str]:
        return set(self.processes)

    async def start(self, kind: str, name: str, number: int, arguments: Arguments) -> None:
        assert name not in self.processes
        self.processes[name] = kind
        self.reserved.add(arguments.generation)

    async def stop(self, name: str) -> None:
        self.stopped.append(name)
        await self.may_end.wait()
        del self.processes[name]

    async def release(self, generations: Set[str]) -> None:
        self.reserved &= generations

    async def addresses(self, kind: str) -> Mapping[str, str]:
        return {name: name for name, each in self.processes.items() if each == kind}

    async def wanted(self, address: str, key: str | None) -> int | None:
        self.keys.add(key)
        return self.wishes.get(address)

    async def claim(self) -> None:
        self.is_owned = True

    async def is_owner(self) -> bool:
        return self.is_owned

    async def close(self) -> None:
        self.is_closed = True

    def numbers(self, kind: str) -> list[str]:
        """Return the numbers of the processes of a kind, as in their names."""
        return sorted(name.split("-")[2] for name, each in self.processes.items() if each == kind)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def arguments(**more: Any) -> Arguments:
    return parse_arguments({"model": "m", "engines": {"min": 1, "max": 3}, "apis": 2, **more})


async def settled(fleet: Fleet) -> None:
    """Look until no process ends."""
    await fleet.step()
    async with asyncio.timeout(HANG_SECONDS):
        while fleet._ending:
            await asyncio.sleep(0)


async def test_engines_follow_the_wishes_of_the_api_processes(cluster: FakeCluster):
    """From the least to the most, and the last ones end first. Without a wish their number stays."""
    fleet = Fleet(cluster, arguments())
    await fleet.step()
    assert (cluster.numbers(ENGINE), cluster.numbers(API)) == (["0"], ["0", "1"])
    apis = [name for name, kind in cluster.processes.items() if kind == API]
    for wishes, engines in (((3, 1), 3), ((None, 2), 2), ((None, None), 2), ((9, None), 3), ((1, 1), 1)):
        cluster.wishes = dict(zip(apis, wishes, strict=True))
        await settled(fleet)
        assert cluster.numbers(ENGINE) == [str(number) for number in range(engines)]
        assert (fleet.target, fleet.wanted) == (engines, max([each for each in wishes if each], default=None))
    assert sorted(name.split("-")[2] for name in cluster.stopped) == ["1", "2", "2"]
    assert cluster.numbers(API) == ["0", "1"] and cluster.keys == {None}


async def test_a_process_that_has_gone_is_started_again(cluster: FakeCluster):
    """Under the same name."""
    fleet = Fleet(cluster, arguments())
    await fleet.step()
    before = dict(cluster.processes)
    for name in before:
        del cluster.processes[name]
        await fleet.step()
        assert cluster.processes == before


async def test_an_engine_that_ends_is_not_started_again_before_it_has_ended(cluster: FakeCluster):
    """Its name is still taken."""
    fleet = Fleet(cluster, arguments())
    await fleet.step()
    api = next(name for name, kind in cluster.processes.items() if kind == API)
    cluster.wishes[api] = 2
    await fleet.step()
    cluster.may_end.clear()
    cluster.wishes[api] = 1
    await fleet.step()
    await fleet.step()
    cluster.wishes[api] = 2
    await fleet.step()
    await asyncio.sleep(0)
    assert len(cluster.stopped) == 1
    cluster.may_end.set()
    await settled(fleet)
    await fleet.step()
    assert cluster.numbers(ENGINE) == ["0", "1"]


async def test_other_options_replace_the_processes(cluster: FakeCluster):
    """A fleet that is new, as after the death of the former, finds them too."""
    await Fleet(cluster, arguments()).step()
    first = set(cluster.processes)
    await settled(Fleet(cluster, arguments()))
    assert set(cluster.processes) == first and not cluster.stopped
    changed = Fleet(cluster, arguments(model="n"))
    await settled(changed)
    assert not first & set(cluster.processes) and len(cluster.processes) == 3


async def test_reserved_resources_are_returned_once_their_processes_have_ended(cluster: FakeCluster):
    """Engines of other options get a group of their own before that."""
    first, second = arguments(), arguments(model="n")
    fleet = Fleet(cluster, first)
    await fleet.step()
    cluster.may_end.clear()
    fleet.arguments = second
    await fleet.step()
    assert cluster.reserved == {first.generation, second.generation}
    cluster.may_end.set()
    await settled(fleet)
    await fleet.step()
    assert cluster.reserved == {second.generation}


async def test_a_fleet_that_was_replaced_neither_starts_nor_ends_processes(cluster: FakeCluster):
    """Two of them would undo each other's work."""
    fleet = Fleet(cluster, arguments())
    cluster.is_owned = False
    await fleet.step()
    assert cluster.processes == {}
    await cluster.claim()
    await fleet.step()
    cluster.is_owned = False
    await fleet.close()
    assert len(cluster.processes) == 3 and not cluster.is_closed


async def test_the_end_of_a_fleet_ends_its_processes_those_of_the_api_first(cluster: FakeCluster):
    """Their last answers need the engines."""
    fleet = Fleet(cluster, arguments())
    await fleet.step()
    await fleet.close()
    assert [name.split("-")[1] for name in cluster.stopped] == [API, API, ENGINE]
    assert cluster.processes == {} and cluster.is_closed


async def test_metrics_are_read_with_the_key_for_metrics(cluster: FakeCluster):
    """Or with the operator's."""
    for options, key in (({"metrics_key": "m", "operator_key": "o"}, "m"), ({"operator_key": "o"}, "o")):
        fleet = Fleet(cluster, arguments(apis={"options": options}))
        await settled(fleet)
        cluster.keys.clear()
        await fleet.step()
        assert cluster.keys == {key}


async def test_the_status_names_all_processes_that_serve(cluster: FakeCluster):
    """With the URLs of the API."""
    fleet = Fleet(cluster, arguments())
    await fleet.step()
    await fleet.step()
    generation = fleet.arguments.generation
    assert fleet.status == {
        "model": "m",
        "engines_wanted": 1,
        "engines": {f"carousel-engine-0-{generation}": f"carousel-engine-0-{generation}"},
        "apis": {f"carousel-api-{i}-{generation}": f"http://carousel-api-{i}-{generation}" for i in range(2)},
    }
