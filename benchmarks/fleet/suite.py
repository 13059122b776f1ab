"""All small scenarios, and the marks that they have to meet."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any

from benchmarks.fleet.arrivals import capacity_of_full_batches
from benchmarks.fleet.capacity import mixed_capacity
from benchmarks.fleet.decisions import decision_microseconds
from benchmarks.fleet.fleet import FleetShape
from benchmarks.fleet.marks import (
    MAX_DECISION_MICROSECONDS,
    MAX_HERD_RATIO,
    MAX_PEOPLE_RATIO,
    MAX_POISON_DEATHS,
    MAX_SHARE_ERROR,
    Mark,
    print_marks,
)
from benchmarks.fleet.scenarios import Load, lost_cell_requests, mixed_row, quiet, takeover_row, tenants_row
from benchmarks.fleet.sessions import sessions_row
from benchmarks.results import save
from engine.types import ServiceClass

ENGINES = 32
AGES, LOADS = (0.0, 0.1, 1.0), (0.7, 0.95)
TENANT_ENGINES = 10
ASKED = {  # shares of the capacity
    "calm and flood": {"calm": 0.4, "flood": 1.1},
    "four": {"a": 0.1, "b": 0.3, "c": 0.6, "d": 0.8},
}
DEATH_ENGINES, DEATH_SECONDS = 32, 10.0
POISON_ENGINES, POISON_SEEDS = (4, 16), 3
CELLS, CELL_ENGINES = 8, 8
SESSION_ENGINES, SESSION_PAGES = 16, 4096

Job = Callable[[], dict[str, Any]]


def people_jobs(rate: float, seconds: float) -> dict[str, Job]:
    """Return the mixed workload at each load and age of load reports, and its interactive requests alone."""
    shape = FleetShape(ENGINES)
    jobs: dict[str, Job] = {}
    for load in LOADS:
        alone = Load(shape, load * rate, seconds, only_people=True)
        jobs[f"people alone, {load:.0%}"] = partial(mixed_row, alone)
        for age in AGES:
            mixed = Load(replace(shape, age=age), load * rate, seconds)
            jobs[f"mixed, {load:.0%}, age {age:g}"] = partial(mixed_row, mixed)
    return jobs


def tenant_jobs(seconds: float) -> dict[str, Job]:
    """Return each set of tenants, of each class that waits."""
    shape = FleetShape(TENANT_ENGINES)
    rate = TENANT_ENGINES * capacity_of_full_batches(shape.cost, shape.slots)
    return {
        f"tenants {name}, {service_class.label}": partial(
            tenants_row, shape, {tenant: share * rate for tenant, share in asked.items()}, service_class, seconds
        )
        for name, asked in ASKED.items()
        for service_class in (ServiceClass.STANDARD, ServiceClass.BATCH)
    }


def fault_jobs(rate: float, seconds: float) -> dict[str, Job]:
    """Return an engine's death every 10 s, and poison requests of each class at several seeds."""
    deaths = tuple(DEATH_SECONDS * number for number in range(1, 1 + int(seconds / DEATH_SECONDS)))
    load = Load(FleetShape(DEATH_ENGINES, age=0.1), LOADS[-1] * rate, seconds, killed_at=deaths)
    jobs: dict[str, Job] = {"deaths": partial(mixed_row, load)}
    for engines, service_class, seed in product(POISON_ENGINES, ServiceClass, range(POISON_SEEDS)):
        shape = FleetShape(engines, age=0.1)
        poisoned = Load(shape, LOADS[-1] * rate, seconds / 2, seed, poisons=((2.0, service_class),))
        jobs[f"poison {service_class.label}, {engines} engines, seed {seed}"] = partial(mixed_row, poisoned)
    return jobs


def lost_cell(rate: float, seconds: float, load: float) -> dict[str, Any]:
    """Lose one of several cells halfway: the others get its load, and its unfinished requests a second later."""
    shape = FleetShape(CELL_ENGINES, age=0.1)
    lost, *others = (Load(shape, load * rate, seconds, seed, name=f"cell {seed}") for seed in range(CELLS))
    orphans = lost_cell_requests(lost, seconds / 2)
    rows = [
        takeover_row(one, lost, (index, len(others)), orphans[index :: len(others)], seconds / 2)
        for index, one in enumerate(others)
    ]
    return {
        "orphans": len(orphans),
        "lost": sum(row["lost"] for row in rows),
        "interactive_after_loss": [row["interactive_after_loss"] for row in rows],
    }


def session_jobs(seconds: float) -> dict[str, Job]:
    """Return agents' sessions, on several engines and on one, which always has their pages."""
    shape = FleetShape(SESSION_ENGINES, pages=SESSION_PAGES, caches_prefixes=True)
    return {
        f"sessions, {engines} engines": partial(sessions_row, replace(shape, engines=engines), 0.7, seconds)
        for engines in (SESSION_ENGINES, 1)
    }


@quiet()
def suite(options: argparse.Namespace) -> None:
    """Run all scenarios in `processes` processes, save their figures and print the marks."""
    rate = mixed_capacity(FleetShape(ENGINES))
    jobs = people_jobs(rate, options.seconds) | tenant_jobs(2 * options.seconds) | fault_jobs(rate, options.seconds)
    for load in LOADS:
        jobs[f"lost cell, {load:.0%}"] = partial(lost_cell, rate, options.seconds, load)
    jobs |= session_jobs(options.seconds)
    chosen = {name: job for name, job in jobs.items() if options.only in name}
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.processes, max_tasks_per_child=1) as pool:
        futures = {name: pool.submit(job) for name, job in chosen.items()}
        for name, future in futures.items():
            row = {**future.result(), "name": name}
            row.pop("firsts", None)
            rows.append(row)
            print(json.dumps(row), flush=True)
    decisions = decision_microseconds()
    print(json.dumps(decisions))
    if options.only:
        return
    marks = marks_of({row["name"]: row for row in rows}, decisions)
    print_marks(marks)
    settings = vars(options) | {"cost": asdict(FleetShape(1).cost), "capacity": rate}
    save("fleet_marks", settings, rows, {"decision_microseconds": decisions, "marks": [asdict(mark) for mark in marks]})


def marks_of(rows: dict[str, dict[str, Any]], decisions: dict[str, float]) -> list[Mark]:
    """Return all marks, measured."""
    marks = []
    for load in LOADS:
        for age in AGES:
            name = f"{load:.0%}, age {age:g}"
            mixed, alone = rows[f"mixed, {name}"]["interactive"], rows[f"people alone, {load:.0%}"]["interactive"]
            ratio = mixed["ttft_p99"] / alone["ttft_p99"]
            marks.append(Mark(f"people's p99 first token over unloaded, {name}", ratio, MAX_PEOPLE_RATIO))
        fresh, stale = (rows[f"mixed, {load:.0%}, age {age:g}"]["batch"]["ttft_p50"] for age in (AGES[0], AGES[-1]))
        marks.append(Mark(f"batch p50 with loads 1 s old over fresh, {load:.0%}", stale / fresh, MAX_HERD_RATIO))
    tenants = {name: row for name, row in rows.items() if name.startswith("tenants")}
    marks += [Mark(f"max-min share error, {name}", row["error"], MAX_SHARE_ERROR) for name, row in tenants.items()]
    poisons = [row for name, row in rows.items() if name.startswith("poison")]
    most = max(row["poison_deaths"] for row in poisons)
    marks.append(Mark("engines killed by a poison request", most, MAX_POISON_DEATHS))
    marks.append(Mark("requests lost", sum(row.get("lost", 0) for row in rows.values()), 0))
    errors = sum(row["errors"] for row in (*poisons, rows["deaths"]))
    marks.append(Mark("requests with an error, beside the poison", errors - len(poisons), 0))
    slowest = max(value for name, value in decisions.items() if name != "choose_member")
    marks.append(Mark("microseconds of a decision at 64 candidates", slowest, MAX_DECISION_MICROSECONDS))
    return marks
