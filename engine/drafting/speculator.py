"""Drafts of one sequence, and what was learnt from them."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from engine.drafting.lookup import NO_DRAFT, Draft, Lookup

MAX_DRAFTS = 7  # of a sequence in a step
LONG_MATCH = 4  # tokens
START = (0.3, 0.6)  # probability that a draft is right after a short and after a long match
START_FORCED = 0.9  # that one is right which a constraint forces: the model may divide the text otherwise
RATE = 0.2  # of learning
FIRST_PAUSE, MAX_PAUSE = 16, 256  # tokens without drafts after one that failed, doubled by each further failure
FIRST_MASKED = 3  # drafts whose masks are computed for a first step
FAILED = 0.1  # probability of the first draft, below which it has failed


class Speculator:
    """Drafts of one sequence, and how often they were right."""

    def __init__(self, tokens: list[int]) -> None:
        self.lookup = Lookup(tokens)
        self.draft = NO_DRAFT  # of the current step, or in preparation
        self.max_masked = FIRST_MASKED  # drafts whose masks are computed before it is known which are in a step
        self.resumes_at = 0  # length of the sequence
        self._has_been_right = False
        self._pause = FIRST_PAUSE
        self._right = ([START[0]] * MAX_DRAFTS, [START[1]] * MAX_DRAFTS)
        self._forced = START_FORCED

    def worths(self, draft: Draft) -> list[float]:
        """Return for each token the probability that it and all before it are right."""
        probabilities = self._right[draft.match >= LONG_MATCH][: len(draft.tokens)]
        if any(draft.is_forced):
            pairs = zip(draft.is_forced, probabilities, strict=True)
            probabilities = [self._forced if is_forced else right for is_forced, right in pairs]
        return _products(probabilities)

    @property
    def tokens_a_step(self) -> float:
        """Return the tokens that a step with a good match is expected to yield; 1 before any draft was right."""
        if not self._has_been_right:
            return 1.0
        return 1.0 + sum(_products(self._right[True]))

    def expect_masked(self, drafts: int) -> None:
        """Expect that the next step has not many more drafts than the current one."""
        self.max_masked = min(MAX_DRAFTS, 2 * drafts + 1)

    def learn(self, drafts: int, right: int, length: int) -> None:
        """Learn from a step with `drafts` tokens, of which the first `right` were right. length: of the sequence."""
        is_forced = self.draft.is_forced or (False,) * drafts
        probabilities = self._right[self.draft.match >= LONG_MATCH]
        for position in range(min(right + 1, drafts)):
            is_right = position < right
            if is_forced[position]:
                self._forced += RATE * (is_right - self._forced)
            else:
                probabilities[position] += RATE * (is_right - probabilities[position])
        if right:
            self._has_been_right = True
            self._pause = FIRST_PAUSE
        elif not is_forced[0] and probabilities[0] < FAILED:
            self.resumes_at = length + self._pause
            self._pause = min(2 * self._pause, MAX_PAUSE)
            probabilities[:] = [START[0]] * MAX_DRAFTS  # so that some drafts are tried after the pause


def _products(factors: list[float]) -> list[float]:
    """Return the product of the first factor, the first two, and so on."""
    return list(accumulate(factors, mul))
