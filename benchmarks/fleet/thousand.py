"""A thousand engines in cells that share nothing, a minute of the mixed workload, with faults."""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from typing import Any

from benchmarks.fleet.answers import percentiles
from benchmarks.fleet.capacity import mixed_capacity
from benchmarks.fleet.fleet import FleetShape
from benchmarks.fleet.marks import MAX_PEOPLE_RATIO, MAX_POISON_DEATHS, Mark, print_marks
from benchmarks.fleet.scenarios import Load, mixed_row, quiet
from benchmarks.results import save
from engine.types import ServiceClass

CELL_ENGINES = 64  # at most
DEATH_SECONDS = 10.0  # between deaths of engines in the whole fleet
POISON_CELL, POISON_AT = 1, 5.0
MAX_WALL_SECONDS = 3600.0


def cells(engines: int, rate: float, load: float, seconds: float, shape: FleetShape) -> list[Load]:
    """Return the load of each cell. Deaths of engines take turns among the cells; a poison request reaches one."""
    count = -(-engines // CELL_ENGINES)
    sizes = [engines // count + (index < engines % count) for index in range(count)]
    deaths = [DEATH_SECONDS * (number + 1) for number in range(int(seconds / DEATH_SECONDS))]
    return [
        Load(
            replace(shape, engines=size),
            load * rate,
            seconds,
            seed=index,
            name=f"cell {index}",
            killed_at=tuple(at for number, at in enumerate(deaths) if number % count == index),
            poisons=((POISON_AT, ServiceClass.STANDARD),) if index == POISON_CELL % count else (),
        )
        for index, size in enumerate(sizes)
    ]


def cell_row(load: Load) -> dict[str, Any]:
    """Return figures of one cell, beside those of the same interactive requests alone."""
    row = mixed_row(load)
    alone = mixed_row(replace(load, only_people=True, killed_at=(), poisons=()))
    return row | {"alone": alone, "cpu_seconds_alone": alone["cpu_seconds"]}


def finish(settings: dict[str, Any], rows: list[dict[str, Any]], wall_seconds: float) -> None:
    """Save the figures of all cells, and print the marks."""
    together, alone = _people(rows), _people([row["alone"] for row in rows])
    for row in rows:
        row.pop("firsts")
        row["alone"] = row["alone"][ServiceClass.INTERACTIVE.label]
    summary = {
        "people": together,
        "people_alone": alone,
        "wall_seconds": wall_seconds,
        "cpu_seconds": sum(row["cpu_seconds"] + row["cpu_seconds_alone"] for row in rows),
        "microseconds_a_step": 1e6 * sum(row["cpu_seconds"] for row in rows) / sum(row["steps"] for row in rows),
        **{name: sum(row[name] for row in rows) for name in ("requests", "lost", "errors", "deaths", "poison_deaths")},
    }
    marks = [
        Mark("people's p99 first token over unloaded", together["ttft_p99"] / alone["ttft_p99"], MAX_PEOPLE_RATIO),
        Mark("requests lost", summary["lost"], 0),
        Mark("engines killed by a poison request", summary["poison_deaths"], MAX_POISON_DEATHS),
        Mark("seconds of the simulation", wall_seconds, MAX_WALL_SECONDS),
        Mark("microseconds of a simulated step", summary["microseconds_a_step"], 200),
    ]
    print(json.dumps(summary, indent=1))
    print_marks(marks)
    save("fleet_thousand", settings, rows, summary | {"marks": [asdict(mark) for mark in marks]})


@quiet()
def thousand(options: argparse.Namespace) -> None:
    """Simulate all cells in `processes` processes."""
    began = time.perf_counter()
    shape = FleetShape(CELL_ENGINES, age=options.age)
    jobs = cells(options.engines, mixed_capacity(shape), options.load, options.seconds, shape)
    rows = []
    with ProcessPoolExecutor(options.processes, max_tasks_per_child=1) as pool:
        for row in pool.map(cell_row, jobs):
            rows.append(row)
            print(f"{row['name']}: {row['cpu_seconds']:.0f} s, {row['steps']:,} steps", flush=True)
    finish(vars(options) | {"cost": asdict(shape.cost)}, rows, time.perf_counter() - began)


def _people(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return percentiles of the first tokens of interactive requests of all cells."""
    return percentiles([first for row in rows for first in row["firsts"]])
