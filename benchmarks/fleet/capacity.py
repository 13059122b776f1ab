"""Capacity of simulated engines with a mix of classes, measured: the rate at which no backlog grows."""

from __future__ import annotations

import heapq
from dataclasses import replace

from benchmarks.fleet.arrivals import LENGTHS, Lengths, capacity_of_full_batches, make_request, mixed, output_mean
from benchmarks.fleet.fleet import Fleet, FleetShape
from engine.types import ServiceClass

ENGINES, WARM_SECONDS, SECONDS = 4, 4.0, 12.0
ROUNDS = 3


def mixed_capacity(shape: FleetShape, lengths: Lengths = LENGTHS) -> float:
    """Return the requests per second of one engine with the mixed workload, beside a backlog of batch requests.

    Full batches do more, but a higher class in the batch limits the rows of lower ones. The work that an engine does
    beside the higher classes' share depends on that share, so the rate is a fixed point: what is served if as much
    arrives.
    """
    fleet_shape = replace(shape, engines=ENGINES, age=0.0)
    rate = capacity_of_full_batches(shape.cost, shape.slots, lengths)
    backlog = int(2 * rate * ENGINES * (WARM_SECONDS + SECONDS))
    for _ in range(ROUNDS):
        fleet = Fleet(fleet_shape)
        waiting = (
            (0.0, make_request(f"b{number}", request.prompt, request.sampling.max_tokens, ServiceClass.BATCH))
            for number, (_, request) in zip(range(backlog), mixed("backlog", 1e6, 1e6, lengths), strict=False)
        )
        arrivals = mixed("capacity", rate * ENGINES, WARM_SECONDS + SECONDS, lengths)
        fleet.receive(heapq.merge(waiting, arrivals, key=lambda arrival: arrival[0]))
        fleet.run(WARM_SECONDS)
        tokens = fleet.tokens
        fleet.run(WARM_SECONDS + SECONDS)
        rate = (fleet.tokens - tokens) / SECONDS / ENGINES / output_mean(lengths)
    return rate
