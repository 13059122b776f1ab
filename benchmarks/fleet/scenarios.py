"""Scenarios of a simulated fleet. Each is a function of frozen settings that returns a row of figures."""

from __future__ import annotations

import gc
import heapq
import logging
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.fleet.answers import Answer, figures, first_tokens, percentiles
from benchmarks.fleet.arrivals import make_request, mixed, tenants
from benchmarks.fleet.fleet import Fleet, FleetShape
from engine.types import Request, ServiceClass

WARM_SHARE = 0.25  # of the simulated seconds, before which arrivals are not measured
POISON_TOKENS = 200  # of a poison request's answer
TAKEOVER_SECONDS = 1.0  # until the requests of a lost cell arrive at others


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one fleet, or of one cell of a larger one.

    rate: requests per second of one engine. killed_at: times at which an engine dies. poisons: times and classes of
    requests that kill each engine that computes them.
    """

    shape: FleetShape
    rate: float
    seconds: float
    seed: int = 0
    name: str = ""
    only_people: bool = False
    killed_at: tuple[float, ...] = ()
    poisons: tuple[tuple[float, ServiceClass], ...] = ()


@contextmanager
def quiet() -> Iterator[None]:
    """Log no deaths of engines, and collect no garbage: there are few cycles, and looking for them takes time."""
    logger = logging.getLogger("carousel")
    level, collects = logger.level, gc.isenabled()
    logger.setLevel(logging.CRITICAL)
    gc.disable()
    try:
        yield
    finally:
        logger.setLevel(level)
        if collects:
            gc.enable()


@quiet()
def mixed_row(load: Load) -> dict[str, Any]:
    """Serve the mixed workload and return figures."""
    fleet = Fleet(load.shape, load.seed)
    fleet.receive(_arrivals(load))
    draw = random.Random(f"deaths{load.seed}")
    for at in load.killed_at:
        fleet.at(at, partial(_kill_one, fleet, draw))
    for number, (at, service_class) in enumerate(load.poisons):
        fleet.at(at, partial(_submit_poison, fleet, f"poison{number}", service_class))
    return _run(fleet, load) | {"unfinished_at_end": _unfinished(fleet.answers, load.seconds)}


@quiet()
def lost_cell_requests(load: Load, at: float) -> list[Request]:
    """Serve the mixed workload until the cell is lost, and return its unfinished requests with their output so far."""
    fleet = Fleet(load.shape, load.seed)
    fleet.receive(_arrivals(load))
    fleet.run(at)
    return [_resumed(answer) for answer in fleet.answers if answer.ended_at is None]


@quiet()
def takeover_row(load: Load, lost: Load, share: tuple[int, int], orphans: list[Request], at: float) -> dict[str, Any]:
    """Serve a cell's own load and its share of a lost cell's: new requests, and `orphans` after a while.

    share: index of the cell and number of cells that share the load.
    """
    index, cells = share
    fleet = Fleet(load.shape, load.seed)
    later = (arrival for arrival in _arrivals(lost) if arrival[0] >= at)
    diverted = (arrival for number, arrival in enumerate(later) if number % cells == index)
    adopted = ((at + TAKEOVER_SECONDS, request) for request in orphans)
    fleet.receive(heapq.merge(_arrivals(load), diverted, adopted, key=lambda arrival: arrival[0]))
    row = _run(fleet, load)
    after = [answer for answer in fleet.answers if answer.at >= at and not answer.request.output_so_far]
    people = (answer for answer in after if answer.request.service_class is ServiceClass.INTERACTIVE)
    return row | {"interactive_after_loss": percentiles(first_tokens(people))}


@quiet()
def tenants_row(
    shape: FleetShape, rates: dict[str, float], service_class: ServiceClass, seconds: float, seed: int = 0
) -> dict[str, Any]:
    """Serve several tenants of one class and compare their service with max-min fair shares.

    rates: requests per second of all engines. The shares are of the tokens that clients received after the warm-up.
    """
    fleet = Fleet(shape, seed)
    fleet.receive(tenants(f"tenants{seed}", rates, service_class, seconds))
    began = time.process_time()
    fleet.run(WARM_SHARE * seconds)
    before = _tokens_by_tenant(fleet.answers)
    fleet.run(seconds)
    served = {name: tokens - before.get(name, 0) for name, tokens in _tokens_by_tenant(fleet.answers).items()}
    asked = dict.fromkeys(rates, 0)
    for answer in fleet.answers:
        if answer.at >= WARM_SHARE * seconds:
            asked[answer.request.tenant] += answer.request.sampling.max_tokens
    fair = max_min_shares(asked, sum(served.values()))
    by_tenant = {name: [answer for answer in fleet.answers if answer.request.tenant == name] for name in rates}
    return {
        "class": service_class.label,
        "asked": {name: tokens / sum(served.values()) for name, tokens in asked.items()},
        "served": {name: tokens / sum(served.values()) for name, tokens in served.items()},
        "fair": {name: tokens / sum(served.values()) for name, tokens in fair.items()},
        "error": max(abs(served[name] - fair[name]) / fair[name] for name in rates),
        "first_tokens": {name: percentiles(first_tokens(answers)) for name, answers in by_tenant.items()},
        "cpu_seconds": time.process_time() - began,
    }


def max_min_shares(asked: Mapping[str, float], total: float) -> dict[str, float]:
    """Divide `total` so that no tenant gets more than it asks, and what one leaves goes to the others equally."""
    fair: dict[str, float] = {}
    left, names = total, sorted(asked, key=lambda name: asked[name])
    for number, name in enumerate(names):
        fair[name] = min(asked[name], left / (len(names) - number))
        left -= fair[name]
    return fair


def _run(fleet: Fleet, load: Load) -> dict[str, Any]:
    began = time.process_time()
    fleet.run()
    seconds = time.process_time() - began
    steps = sum(member.steps for member in fleet.members)
    return {
        "name": load.name,
        "engines": load.shape.engines,
        "age": load.shape.age,
        "seconds": load.seconds,
        "cpu_seconds": seconds,
        "steps": steps,
        "microseconds_a_step": 1e6 * seconds / steps,
        "deaths": sum(member.deaths for member in fleet.members),
        "poison_deaths": sum(member.poison_deaths for member in fleet.members),
        **figures(fleet.answers, WARM_SHARE * load.seconds),
    }


def _arrivals(load: Load) -> Iterator[tuple[float, Request]]:
    arrivals: Iterable[tuple[float, Request]] = mixed(
        f"{load.name}{load.seed}", load.rate * load.shape.engines, load.seconds, prefix=f"{load.seed}."
    )
    for at, request in arrivals:
        if not load.only_people or request.service_class is ServiceClass.INTERACTIVE:
            yield at, request


def _kill_one(fleet: Fleet, draw: random.Random) -> None:
    """Kill a random engine."""
    draw.choice([member for member in fleet.members if member.engine is not None]).die()


def _submit_poison(fleet: Fleet, name: str, service_class: ServiceClass) -> None:
    fleet.poisons.add(name)
    fleet.submit(make_request(name, (5,) * POISON_TOKENS, POISON_TOKENS, service_class))


def _resumed(answer: Answer) -> Request:
    request = answer.request
    output = {0: (7,) * answer.tokens} if answer.tokens else {}
    return make_request(
        f"adopted.{request.id}",
        request.prompt,
        request.sampling.max_tokens,
        request.service_class,
        output_so_far=output,
    )


def _tokens_by_tenant(answers: Iterable[Answer]) -> dict[str, int]:
    tokens: dict[str, int] = {}
    for answer in answers:
        tokens[answer.request.tenant] = tokens.get(answer.request.tenant, 0) + answer.tokens
    return tokens


def _unfinished(answers: Iterable[Answer], at: float) -> int:
    """Return the number of answers that had not ended when arrivals ended: the backlog."""
    return sum(answer.ended_at is None or answer.ended_at > at for answer in answers)
