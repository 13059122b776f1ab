"""Processor time of masks: its limits, and a random walk that measures it.

The work of a mask grows with the ambiguity of a grammar, and no counted limit of llguidance bounds it well: 47 bytes of
grammar may take seconds a token. So every mask is timed.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from llguidance import LLMatcher

ORDINARY_SECONDS = 1e-4  # processor time of a mask of an ordinary schema, as an upper bound on a fast machine
MEAN_FACTOR = 20  # times an ordinary mask, for the mean of MEAN_WINDOW masks
PEAK_FACTOR = 100  # times an ordinary mask, above which a mask is a peak
MEAN_WINDOW = 16  # masks
MAX_PEAKS = 2  # of one sequence; the next one exceeds the limits
WALK_MASKS = 64  # masks of a random walk
ORDINARY_GRAMMAR = (
    'start: %json {"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer"}, '
    '"tags": {"type": "array", "items": {"type": "string"}}}, "required": ["name", "size", "tags"]}'
)
MEASURED_WALKS = 3


@dataclass(frozen=True, slots=True)
class MaskLimits:
    """Seconds of processor time that masks of one sequence may take: their recent mean, and a few peaks."""

    mean_seconds: float = MEAN_FACTOR * ORDINARY_SECONDS
    peak_seconds: float = PEAK_FACTOR * ORDINARY_SECONDS

    @classmethod
    def measure(cls, ordinary: LLMatcher, end_ids: Iterable[int]) -> MaskLimits:
        """Return limits for this machine and vocabulary, from random walks with a matcher of `ORDINARY_GRAMMAR`."""
        means = []
        for seed in range(MEASURED_WALKS):
            seconds = list(islice(walk(ordinary.deep_copy(), random.Random(seed), end_ids), WALK_MASKS))
            means.append(sum(seconds) / len(seconds))
        scale = max(ORDINARY_SECONDS, min(means))
        return cls(MEAN_FACTOR * scale, PEAK_FACTOR * scale)


class MaskCosts:
    """Processor time of the masks of one sequence."""

    __slots__ = ("_limits", "_peaks", "_recent", "_unread")

    def __init__(self, limits: MaskLimits) -> None:
        self._limits = limits
        self._recent: deque[float] = deque(maxlen=MEAN_WINDOW)
        self._peaks = 0
        self._unread = 0.0

    def add(self, seconds: float) -> None:
        """Count a mask."""
        self._recent.append(seconds)
        self._peaks += seconds > self._limits.peak_seconds
        self._unread += seconds

    def add_drafts(self, seconds: float, most: float) -> bool:
        """Count the masks after drafts, which are charged for, and no reason to end the answer.

        most: seconds after which no further one was begun. Returns whether the last one must have taken longer than the
        mean may be.
        """
        self._unread += seconds
        return seconds > most + self._limits.mean_seconds

    @property
    def is_slow(self) -> bool:
        """Return whether the last mask took longer than the mean may be."""
        return bool(self._recent) and self._recent[-1] > self._limits.mean_seconds

    @property
    def are_exceeded(self) -> bool:
        """Return whether the limits are exceeded."""
        is_full = len(self._recent) == MEAN_WINDOW
        return self._peaks > MAX_PEAKS or (is_full and sum(self._recent) > MEAN_WINDOW * self._limits.mean_seconds)

    def take_seconds(self) -> float:
        """Return the seconds since the last call."""
        seconds, self._unread = self._unread, 0.0
        return seconds

    @property
    def message(self) -> str:
        """Return the error message for a sequence that exceeds the limits."""
        return (
            f"its tokens take more than {1e3 * self._limits.mean_seconds:.3g} ms of processor time each to enforce, "
            f"{MEAN_FACTOR} times those of an ordinary schema; simplify it, for example nested repetitions and rules "
            "that match one text in many ways"
        )


def walk(matcher: LLMatcher, rng: random.Random, end_ids: Iterable[int]) -> Iterator[float]:
    """Advance a matcher by random allowed tokens, and end only where the grammar does.

    Yields the seconds of processor time of each mask, at least one.
    """
    while True:
        began = time.thread_time()
        mask = matcher.compute_bitmask()
        yield time.thread_time() - began
        words = np.frombuffer(bytearray(mask), np.uint32)
        for token_id in end_ids:
            words[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        with_tokens = np.flatnonzero(words)
        if matcher.is_error() or not len(with_tokens):
            return
        word = int(with_tokens[rng.randrange(len(with_tokens))])
        bits = [bit for bit in range(32) if words[word] >> bit & 1]
        matcher.consume_token(32 * word + rng.choice(bits))


def cost_error(matcher: LLMatcher, limits: MaskLimits, end_ids: Iterable[int]) -> str:
    """Return why masks cost too much on a random walk of WALK_MASKS tokens; empty if they do not."""
    costs = MaskCosts(limits)
    for seconds in islice(walk(matcher, random.Random(0), end_ids), WALK_MASKS):
        costs.add(seconds)
        if costs.are_exceeded:
            return costs.message
    return ""
