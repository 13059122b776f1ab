"""Loads with staggered requests: a closed loop of clients, and Poisson arrivals."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from benchmarks.peers.load import Load

MEAN_PROMPT, MEAN_OUTPUT = 220, 180  # tokens, about those of ShareGPT conversations
PROMPT_SIGMA, OUTPUT_SIGMA = 1.2, 0.9
MAX_PROMPT, MAX_OUTPUT = 1024, 768  # tokens
REQUESTS_PER_CLIENT = 4
CLIENTS = 32
PERCENT_OF_CAPACITY = (20, 40, 60, 80, 100, 120)


@dataclass(frozen=True)
class LognormalLoad(Load):
    """Closed loop: `streams` clients, each of which sends its next request when its answer has ended."""

    requests_per_client: int = REQUESTS_PER_CLIENT

    @property
    def requests(self) -> int:
        """Return the number of requests of the run."""
        return self.streams * self.requests_per_client

    @property
    def prompt_lengths(self) -> list[int]:
        """Return the prompt tokens of each request: lognormal, the same in every run."""
        return _lognormal("prompts", self.requests, MEAN_PROMPT, PROMPT_SIGMA, MAX_PROMPT)

    @property
    def lengths(self) -> list[int]:
        """Return the output tokens of each request: lognormal, the same in every run."""
        return _lognormal("outputs", self.requests, MEAN_OUTPUT, OUTPUT_SIGMA, MAX_OUTPUT)

    @property
    def clients(self) -> int | None:
        """Return the maximum number of requests in flight."""
        return self.streams


@dataclass(frozen=True)
class PoissonLoad(LognormalLoad):
    """Open loop: requests arrive at `rate` per second, regardless of earlier answers."""

    rate: float = 1.0

    @property
    def starts(self) -> list[float]:
        """Return arrival times in seconds, the same for every peer of a run."""
        dice, now, times = random.Random(f"poisson {self.run}"), 0.0, []
        for _ in range(self.requests):
            now += dice.expovariate(self.rate)
            times.append(now)
        return times

    @property
    def clients(self) -> int | None:
        """Return None: requests in flight are not limited."""
        return None


def _lognormal(name: str, count: int, mean: float, sigma: float, longest: int) -> list[int]:
    dice = random.Random(name)
    location = math.log(mean) - sigma * sigma / 2
    return [max(2, min(longest, round(dice.lognormvariate(location, sigma)))) for _ in range(count)]
