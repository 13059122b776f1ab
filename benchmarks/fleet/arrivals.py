"""Arrivals at a simulated fleet: interactive requests beside bulk work, tenants, and agents' sessions.

A seed determines them. Rates are given as shares of the capacity: the work that engines with full batches do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count

from engine.simulation import StepCost
from engine.types import Request, SamplingParams, ServiceClass

PROMPT_SIGMA, OUTPUT_SIGMA = 1.0, 0.8  # of the logarithms of lengths
MAX_TOKENS = 1024  # of a prompt, and of an answer
# Shares of requests by class in the mixed workload.
MIX = {ServiceClass.INTERACTIVE: 0.1, ServiceClass.STANDARD: 0.45, ServiceClass.BATCH: 0.45}


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths of prompts and answers, which are lognormal."""

    prompt: int = 200
    output: int = 64

    def draw(self, rng: random.Random) -> tuple[int, int]:
        """Return the lengths of a prompt and its answer."""
        return _lognormal(rng, self.prompt, PROMPT_SIGMA), _lognormal(rng, self.output, OUTPUT_SIGMA)


LENGTHS = Lengths()


def _lognormal(rng: random.Random, mean: float, sigma: float) -> int:
    length = rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)
    return max(1, min(MAX_TOKENS, round(length)))


@cache
def _means(lengths: Lengths) -> tuple[float, float]:
    """Return the mean tokens of prompts and answers, which are cut at `MAX_TOKENS`."""
    rng = random.Random("means")
    drawn = [lengths.draw(rng) for _ in range(20_000)]
    prompt, output = (sum(values) / len(drawn) for values in zip(*drawn, strict=True))
    return prompt, output


def output_mean(lengths: Lengths = LENGTHS) -> float:
    """Return the mean tokens of an answer."""
    return _means(lengths)[1]


def capacity_of_full_batches(cost: StepCost, slots: int, lengths: Lengths = LENGTHS) -> float:
    """Return the requests per second of an engine that always computes full batches of one class."""
    prompt, output = _means(lengths)
    return 1 / (output * (cost.step / slots + cost.decode) + prompt * cost.prompt)


def poisson(rng: random.Random, rate: float, seconds: float, begin: float = 0.0) -> Iterator[float]:
    """Yield the times of a Poisson process between `begin` and `seconds`."""
    now = begin + rng.expovariate(rate)
    while now < seconds:
        yield now
        now += rng.expovariate(rate)


def make_request(
    name: str,
    prompt: tuple[int, ...],
    output: int,
    service_class: ServiceClass,
    tenant: str = "",
    output_so_far: dict[int, tuple[int, ...]] | None = None,
) -> Request:
    """Return a request for `output` tokens, with those so far."""
    return Request(
        id=name,
        prompt=prompt,
        sampling=SamplingParams(max_tokens=output, temperature=0.0),
        service_class=service_class,
        tenant=tenant,
        output_so_far=output_so_far or {},
    )


def mixed(
    seed: str, rate: float, seconds: float, lengths: Lengths = LENGTHS, begin: float = 0.0, prefix: str = ""
) -> Iterator[tuple[float, Request]]:
    """Yield requests of all classes, in the shares of `MIX`. prefix: of their IDs."""
    rng = random.Random(seed)
    classes, shares = list(MIX), list(MIX.values())
    for number, at in enumerate(poisson(rng, rate, seconds, begin)):
        (service_class,) = rng.choices(classes, shares)
        prompt, output = lengths.draw(rng)
        yield at, make_request(f"{prefix}{number}", (5,) * prompt, output, service_class)


def tenants(
    seed: str, rates: dict[str, float], service_class: ServiceClass, seconds: float, lengths: Lengths = LENGTHS
) -> Iterator[tuple[float, Request]]:
    """Yield requests of several tenants of one class. rates: of their requests per second."""
    rng = random.Random(seed)
    names, numbers = list(rates), count()
    for at in poisson(rng, sum(rates.values()), seconds):
        (tenant,) = rng.choices(names, list(rates.values()))
        prompt, output = lengths.draw(rng)
        yield at, make_request(f"{tenant}{next(numbers)}", (5,) * prompt, output, service_class, tenant)
