"""Workloads: who asks when, for how much. The same for a live server and for the simulator; a seed decides all.

Shapes are those of the papers: Orca's uniform lengths (OSDI'22), capped exponential ones, lognormal ones with the
moments of ShareGPT conversations (as in vLLM's evaluation, SOSP'23), gamma-distributed bursts (as in AlpaServe and
Sarathi-Serve), people beside a backlog, prompts that share prefixes, a tenant that floods, and ten times more than
fits. Lengths are tokens and scale to what the model's context holds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

BURSTY = 0.25  # shape of the gamma distribution of the gaps: their coefficient of variation is 2


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a workload."""

    at: float  # seconds after the beginning
    prompt_tokens: int
    output_tokens: int
    tier: str = "default"  # priority, default or flex
    tenant: str = ""
    prefix: int | None = None  # requests with the same one share the first half of their prompts


@dataclass(frozen=True, slots=True)
class Scale:
    """How large lengths are, and how fast requests come."""

    rate: float  # requests a second, on average
    prompt: int = 64  # mean tokens
    output: int = 48
    longest: int = 512  # of a prompt, and of an answer


Source = Callable[[random.Random, Scale], Iterator[Asked]]


def _gaps(dice: random.Random, rate: float, shape: float = 1.0) -> Iterator[float]:
    """Moments at which somebody comes; shape 1 is a Poisson process."""
    now = 0.0
    while True:
        now += dice.gammavariate(shape, 1.0 / (shape * rate))
        yield now


def _clip(value: float, longest: int) -> int:
    return max(1, min(longest, round(value)))


def uniform(dice: random.Random, scale: Scale) -> Iterator[Asked]:
    """Lengths uniform between next to nothing and twice the mean."""
    for at in _gaps(dice, scale.rate):
        prompt = dice.randint(max(1, scale.prompt // 8), 2 * scale.prompt - scale.prompt // 8)
        yield Asked(at, _clip(prompt, scale.longest), _clip(dice.randint(1, 2 * scale.output - 1), scale.longest))


def exponential(dice: random.Random, scale: Scale) -> Iterator[Asked]:
    """Answers exponential, cut at four times their mean; prompts uniform."""
    for at in _gaps(dice, scale.rate):
        output = min(dice.expovariate(1 / scale.output), 4 * scale.output)
        prompt = dice.randint(scale.prompt // 2, 3 * scale.prompt // 2)
        yield Asked(at, _clip(prompt, scale.longest), _clip(output, scale.longest))


def _lognormal(dice: random.Random, mean: float, sigma: float) -> float:
    return dice.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)


def sharegpt(dice: random.Random, scale: Scale) -> Iterator[Asked]:
    """Lognormal lengths, prompts more spread out than answers."""
    for at in _gaps(dice, scale.rate):
        prompt, output = _lognormal(dice, scale.prompt, 1.2), _lognormal(dice, scale.output, 0.9)
        yield Asked(at, _clip(prompt, scale.longest), _clip(output, scale.longest))


def bursts(dice: random.Random, scale: Scale) -> Iterator[Asked]:
    """Lengths as in `sharegpt`, arrivals in bursts."""
    for at, asked in zip(_gaps(dice, scale.rate, BURSTY), sharegpt(dice, scale), strict=False):
        yield replace(asked, at=at)


def mixed(dice: random.Random, scale: Scale) -> Iterator[Asked]:
    """One request in ten is a person's, and they come as a Poisson process; the rest is bulk work that is handed in
    nine at a time. At a rate beyond what the server can do there is always a backlog."""
    bulk, handed_in = uniform(random.Random(dice.random()), scale), 0.0
    for person in sharegpt(dice, replace(scale, rate=scale.rate / 10)):
        for asked in islice(bulk, 9):
            yield Asked(handed_in, asked.prompt_tokens, asked.output_tokens, "flex")
        yield replace(person, tier="priority")
        handed_in = person.at


def prefixes(dice: random.Random, scale: Scale) -> Iterator[Asked]:
    """Sixteen groups of callers; those of a group share the first half of their prompts."""
    for asked in uniform(dice, scale):
        yield replace(asked, prefix=dice.randrange(16))


def overload(dice: random.Random, scale: Scale) -> Iterator[Asked]:
    """Ten times the rate, all classes."""
    for asked in sharegpt(dice, replace(scale, rate=10 * scale.rate)):
        yield replace(asked, tier=dice.choice(("priority", "default", "flex")))


def tenants(dice: random.Random, scale: Scale) -> Iterator[Asked]:
    """One tenant floods with nine tenths of the requests, the other asks for a tenth."""
    for asked in uniform(dice, scale):
        yield replace(asked, tenant="flood" if dice.random() < 0.9 else "calm")


WORKLOADS: dict[str, Source] = {
    source.__name__: source for source in (uniform, exponential, sharegpt, bursts, mixed, prefixes, tenants, overload)
}


def workload(name: str, requests: int, scale: Scale, seed: int = 0) -> Iterator[Asked]:
    """The first `requests` of a workload, in the order in which they come."""
    return islice(WORKLOADS[name](random.Random(f"{name}{seed}"), scale), requests)


def prompt_ids(asked: Asked, number: int, vocabulary: int) -> list[int]:
    """Token ids of a prompt that nobody else has, but for a shared prefix. Ids of special tokens, which are few and
    come first or last, are left out."""
    dice = random.Random(number)
    low, high = min(300, vocabulary // 4), max(vocabulary - vocabulary // 8, vocabulary // 4 + 1)
    own = [dice.randrange(low, high) for _ in range(asked.prompt_tokens)]
    if asked.prefix is not None:
        group = random.Random(f"prefix{asked.prefix}")
        half = asked.prompt_tokens // 2
        own[:half] = [group.randrange(low, high) for _ in range(half)]
    return own
