"""A small simulated fleet loses nothing, is fair, and gives the same result each time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.fleet.arrivals import capacity_of_full_batches
from benchmarks.fleet.fleet import Fleet, FleetShape
from benchmarks.fleet.scenarios import (
    Load,
    lost_cell_requests,
    max_min_shares,
    mixed_row,
    takeover_row,
    tenants_row,
)
from benchmarks.fleet.sessions import sessions_row
from engine.types import ServiceClass

SHAPE = FleetShape(engines=4, api_processes=2, slots=8, restart_seconds=1.0)
RATE = 0.75 * capacity_of_full_batches(SHAPE.cost, SHAPE.slots)
LOAD = Load(SHAPE, RATE, seconds=3.0)


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that do not depend on this machine."""
    return {name: value for name, value in row.items() if name not in ("cpu_seconds", "microseconds_a_step")}


@pytest.mark.parametrize("age", [0.0, 0.5])
def test_a_seed_determines_the_result(age: float):
    """Two runs of a fleet with deaths give the same figures, and another seed gives others."""
    load = replace(LOAD, shape=replace(SHAPE, age=age), killed_at=(1.0, 2.0))
    first = without_times(mixed_row(load))
    assert first == without_times(mixed_row(load))
    assert first["firsts"] != mixed_row(replace(load, seed=1))["firsts"]


@pytest.mark.parametrize("age", [0.0, 0.5])
def test_dead_engines_lose_nothing(age: float):
    """Every request gets each of its tokens once although engines die, also with their last frames under way."""
    row = mixed_row(replace(LOAD, shape=replace(SHAPE, age=age), killed_at=(0.5, 1.0, 1.5, 2.0)))
    assert row["deaths"] == 4
    assert (row["lost"], row["errors"]) == (0, 0)


@pytest.mark.parametrize("service_class", ServiceClass)
def test_a_poison_request_ends_alone_after_three_engines(service_class: ServiceClass):
    """A request that kills each engine that computes it ends with an error, and no other request does."""
    row = mixed_row(replace(LOAD, shape=replace(SHAPE, api_processes=1), poisons=((1.0, service_class),)))
    assert (row["poison_deaths"], row["errors"], row["lost"]) == (3, 1, 0)


def test_a_poison_request_kills_three_engines_of_several_api_processes():
    """No API process sends a request of another one to a further engine."""
    row = mixed_row(replace(LOAD, poisons=((1.0, ServiceClass.STANDARD),)))
    assert (row["poison_deaths"], row["lost"]) == (3, 0)


@pytest.mark.parametrize("service_class", [ServiceClass.STANDARD, ServiceClass.BATCH])
def test_tenants_get_their_max_min_shares(service_class: ServiceClass):
    """Beside a flood, a tenant that asks less than its share gets what it asks."""
    capacity = SHAPE.engines * capacity_of_full_batches(SHAPE.cost, SHAPE.slots)
    row = tenants_row(SHAPE, {"calm": 0.4 * capacity, "flood": 1.1 * capacity}, service_class, 6.0)
    assert row["error"] <= 0.1


def test_max_min_shares_divide_what_a_tenant_leaves():
    """Tenants that ask more than an equal part get the same."""
    assert max_min_shares({"a": 6.0, "b": 1.0, "c": 9.0}, 9.0) == {"b": 1.0, "a": 4.0, "c": 4.0}


def test_requests_of_a_lost_cell_end_in_other_cells():
    """Requests with output so far continue there, beside later arrivals of the lost cell."""
    at, lost = 2.0, replace(LOAD, name="lost", seed=1)
    orphans = lost_cell_requests(lost, at)
    assert any(request.output_so_far for request in orphans)
    row = takeover_row(replace(LOAD, rate=RATE / 2), lost, (0, 2), orphans, at)
    assert row["lost"] == 0


def test_later_turns_of_a_session_find_their_prefix_on_the_only_engine():
    """A single engine has the pages of all earlier turns; an answer's last token and partial pages are not cached."""
    shape = replace(SHAPE, engines=1, pages=4096, caches_prefixes=True)
    row = sessions_row(shape, 0.4, 10.0)
    assert row["lost"] == 0
    assert row["cached"] == pytest.approx(row["repeated"], rel=0.15)


def test_a_frame_that_is_under_way_delays_the_knowledge_of_a_death():
    """An API process moves the requests of a dead engine when the loss is known to it."""
    fleet = Fleet(replace(SHAPE, age=0.5))
    fleet.at(1.0, fleet.members[0].die)
    fleet.run(1.4)
    assert [ready.index for ready in fleet.ready_members()] == [0, 1, 2, 3]
    fleet.run(1.6)
    assert [ready.index for ready in fleet.ready_members()] == [1, 2, 3]
