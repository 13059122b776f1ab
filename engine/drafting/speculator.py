"""Drafts of one sequence, and what was learnt from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from engine.drafting.lookup import LONG_MATCH, NO_DRAFT, Draft, Lookup
from engine.drafting.note import GRAMMAR
from engine.drafting.prediction import Prediction

MAX_DRAFTS = 7  # of a sequence in a step
START = (0.3, 0.6)  # probability that a draft is right after a short and after a long match
START_FORCED = 0.9  # that one is right which a constraint forces: the model may divide the text otherwise
RATE = 0.2  # of learning
FIRST_PAUSE, MAX_PAUSE = 16, 256  # tokens without drafts after one that failed, doubled by each further failure
FIRST_MASKED = 3  # drafts whose masks are computed for a first step
FAILED = 0.1  # probability of the first draft, below which it has failed


class Odds:
    """How often the drafts of one source were right, and when they are tried again after failures."""

    def __init__(self) -> None:
        self.right = ([START[0]] * MAX_DRAFTS, [START[1]] * MAX_DRAFTS)  # by position, after short and long matches
        self.resumes_at = 0  # length of the sequence
        self._pause = FIRST_PAUSE

    def learn_first(self, probabilities: list[float], length: int, *, is_right: bool) -> None:
        """Learn whether the first draft of a step was right. probabilities: of its kind of match."""
        if is_right:
            self._pause = FIRST_PAUSE
        elif probabilities[0] < FAILED:
            self.resumes_at = length + self._pause
            self._pause = min(2 * self._pause, MAX_PAUSE)
            probabilities[:] = [START[0]] * MAX_DRAFTS  # so that some drafts are tried after the pause


class Speculator:
    """Drafts of one sequence, and how often they were right."""

    def __init__(
        self, tokens: list[int], predicted: Sequence[int] = (), start: int = 0, answers_key: bytes = b""
    ) -> None:
        """tokens: of the sequence, which appends to them. predicted: by the client. start: of the answer in tokens.

        answers_key: of the earlier answers that it may repeat.
        """
        self.lookup = Lookup(tokens)
        self.prediction = Prediction(predicted, tokens, start) if predicted else None
        self.answers_key = answers_key
        self.draft = NO_DRAFT  # of the current step, or in preparation
        self.max_masked = FIRST_MASKED  # drafts whose masks are computed before it is known which are in a step
        self.drafted: Counter[str] = Counter()  # tokens that were in a step, by source
        self.accepted: Counter[str] = Counter()  # of these, the ones in the answer
        self.odds: defaultdict[str, Odds] = defaultdict(Odds)  # by source
        self._forced = START_FORCED
        self._has_been_right = False

    def worths(self, draft: Draft) -> list[float]:
        """Return for each token the probability that it and all before it are right."""
        probabilities = self.odds[draft.source].right[draft.match >= LONG_MATCH][: len(draft.tokens)]
        if any(draft.is_forced):
            pairs = zip(draft.is_forced, probabilities, strict=True)
            probabilities = [self._forced if is_forced else right for is_forced, right in pairs]
        return _products(probabilities)

    @property
    def tokens_a_step(self) -> float:
        """Return the tokens that a step with a good match is expected to yield; 1 before any draft was right."""
        if not self._has_been_right:
            return 1.0
        return 1.0 + max([sum(_products(odds.right[True])) for odds in self.odds.values()], default=0.0)

    def may_try(self, source: str, length: int) -> bool:
        """Return whether the drafts of a source do not pause. length: of the sequence."""
        return source not in self.odds or length >= self.odds[source].resumes_at

    def expect_masked(self, drafts: int) -> None:
        """Expect that the next step has not many more drafts than the current one."""
        self.max_masked = min(MAX_DRAFTS, 2 * drafts + 1)

    def count_drafted(self, tokens: int) -> None:
        """Count the first tokens of the draft, which are in a step."""
        self.drafted.update([self.draft.source_of(index) for index in range(tokens)])

    def count_accepted(self, index: int) -> None:
        """Count one of them as a token of the answer."""
        self.accepted[self.draft.source_of(index)] += 1

    def learn(self, drafts: int, right: int, length: int) -> None:
        """Learn from a step with `drafts` tokens, of which the first `right` were right. length: of the sequence."""
        draft, odds = self.draft, self.odds[self.draft.source]
        probabilities = odds.right[draft.match >= LONG_MATCH]
        for position in range(min(right + 1, drafts)):
            is_right = position < right
            if draft.source_of(position) == GRAMMAR:
                self._forced += RATE * (is_right - self._forced)
            else:
                probabilities[position] += RATE * (is_right - probabilities[position])
        if right:
            self._has_been_right = True
        if draft.source_of(0) != GRAMMAR:
            odds.learn_first(probabilities, length, is_right=right > 0)


def _products(factors: list[float]) -> list[float]:
    """Return the product of the first factor, the first two, and so on."""
    return list(accumulate(factors, mul))
