"""Workloads: arrival times, lengths, classes and tenants of requests, for a live server and for the simulator. A seed
determines them.

Their shapes are those of published evaluations: Orca's uniform lengths (OSDI'22), capped exponential ones, lognormal
ones with the moments of ShareGPT conversations (as in vLLM's evaluation, SOSP'23), gamma-distributed bursts (as in
AlpaServe and Sarathi-Serve), interactive requests beside a backlog, prompts that share prefixes, a tenant that floods,
and a tenfold overload. Lengths are tokens and scale to the model's context.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

BURST_SHAPE = 0.25  # shape of the gamma distribution of the gaps: their coefficient of variation is 2


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a workload."""

    at: float  # seconds from the beginning
    prompt_tokens: int
    output_tokens: int
    tier: str = "default"  # priority, default or flex
    tenant: str = ""
    prefix: int | None = None  # requests with the same number share the first half of their prompts


@dataclass(frozen=True, slots=True)
class Scale:
    """Mean lengths and rate of a workload."""

    rate: float  # mean requests per second
    prompt: int = 64  # mean tokens
    output: int = 48
    max_tokens: int = 512  # maximum length of a prompt, and of an answer


Source = Callable[[random.Random, Scale], Iterator[WorkloadRequest]]


def _gaps(rng: random.Random, rate: float, shape: float = 1.0) -> Iterator[float]:
    """Yield arrival times; shape 1 is a Poisson process."""
    now = 0.0
    while True:
        now += rng.gammavariate(shape, 1.0 / (shape * rate))
        yield now


def _clip(value: float, longest: int) -> int:
    return max(1, min(longest, round(value)))


def uniform(rng: random.Random, scale: Scale) -> Iterator[WorkloadRequest]:
    """Yield requests with lengths uniform from close to 0 to twice the mean."""
    for at in _gaps(rng, scale.rate):
        prompt = rng.randint(max(1, scale.prompt // 8), 2 * scale.prompt - scale.prompt // 8)
        yield WorkloadRequest(
            at, _clip(prompt, scale.max_tokens), _clip(rng.randint(1, 2 * scale.output - 1), scale.max_tokens)
        )


def exponential(rng: random.Random, scale: Scale) -> Iterator[WorkloadRequest]:
    """Yield requests with exponential answers, cut at four times their mean, and uniform prompts."""
    for at in _gaps(rng, scale.rate):
        output = min(rng.expovariate(1 / scale.output), 4 * scale.output)
        prompt = rng.randint(scale.prompt // 2, 3 * scale.prompt // 2)
        yield WorkloadRequest(at, _clip(prompt, scale.max_tokens), _clip(output, scale.max_tokens))


def _lognormal(rng: random.Random, mean: float, sigma: float) -> float:
    return rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)


def sharegpt(rng: random.Random, scale: Scale) -> Iterator[WorkloadRequest]:
    """Yield requests with lognormal lengths; prompts vary more than answers."""
    for at in _gaps(rng, scale.rate):
        prompt, output = _lognormal(rng, scale.prompt, 1.2), _lognormal(rng, scale.output, 0.9)
        yield WorkloadRequest(at, _clip(prompt, scale.max_tokens), _clip(output, scale.max_tokens))


def bursts(rng: random.Random, scale: Scale) -> Iterator[WorkloadRequest]:
    """Yield requests with lengths as in `sharegpt` that arrive in bursts."""
    for at, requested in zip(_gaps(rng, scale.rate, BURST_SHAPE), sharegpt(rng, scale), strict=False):
        yield replace(requested, at=at)


def mixed(rng: random.Random, scale: Scale) -> Iterator[WorkloadRequest]:
    """Yield interactive requests, one in ten, as a Poisson process; the others are bulk requests that arrive nine at a
    time. At a rate beyond the server's capacity there is always a backlog.
    """
    bulk, handed_in = uniform(random.Random(rng.random()), scale), 0.0
    for person in sharegpt(rng, replace(scale, rate=scale.rate / 10)):
        for requested in islice(bulk, 9):
            yield WorkloadRequest(handed_in, requested.prompt_tokens, requested.output_tokens, "flex")
        yield replace(person, tier="priority")
        handed_in = person.at


def prefixes(rng: random.Random, scale: Scale) -> Iterator[WorkloadRequest]:
    """Yield requests of sixteen groups; requests of a group share the first half of their prompts."""
    for requested in uniform(rng, scale):
        yield replace(requested, prefix=rng.randrange(16))


def overload(rng: random.Random, scale: Scale) -> Iterator[WorkloadRequest]:
    """Yield requests of all classes at ten times the rate."""
    for requested in sharegpt(rng, replace(scale, rate=10 * scale.rate)):
        yield replace(requested, tier=rng.choice(("priority", "default", "flex")))


def tenants(rng: random.Random, scale: Scale) -> Iterator[WorkloadRequest]:
    """Yield requests of two tenants: one floods with nine tenths of the requests, the other sends a tenth."""
    for requested in uniform(rng, scale):
        yield replace(requested, tenant="flood" if rng.random() < 0.9 else "calm")


WORKLOADS: dict[str, Source] = {
    source.__name__: source for source in (uniform, exponential, sharegpt, bursts, mixed, prefixes, tenants, overload)
}


def workload(name: str, requests: int, scale: Scale, seed: int = 0) -> Iterator[WorkloadRequest]:
    """Return the first `requests` requests of a workload, in order of arrival."""
    return islice(WORKLOADS[name](random.Random(f"{name}{seed}"), scale), requests)


def prompt_ids(requested: WorkloadRequest, number: int, vocabulary: int) -> list[int]:
    """Return unique token ids for a prompt, except for a shared prefix. The first and last ids of the vocabulary, among
    which special tokens are, are left out.
    """
    rng = random.Random(number)
    low, high = min(300, vocabulary // 4), max(vocabulary - vocabulary // 8, vocabulary // 4 + 1)
    own = [rng.randrange(low, high) for _ in range(requested.prompt_tokens)]
    if requested.prefix is not None:
        group = random.Random(f"prefix{requested.prefix}")
        half = requested.prompt_tokens // 2
        own[:half] = [group.randrange(low, high) for _ in range(half)]
    return own
