"""Drafts of one sequence, and what was learnt from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from engine.drafting.lookup import LONG_MATCH, NO_DRAFT, Draft, Lookup
from engine.drafting.note import GRAMMAR
from engine.drafting.prediction import Prediction

MAX_DRAFTS = 7  # of a sequence in a step
START = (0.3, 0.6)  # probability that a draft is right after a short and after a long match
START_FORCED = 0.9  # that one is right which a constraint forces: the model may divide the text otherwise
FIRST_RATE, RATE = 0.5, 0.2  # of learning, from the first step with drafts on and after some
FIRST_PAUSE, MAX_PAUSE = 16, 256  # tokens without drafts that are not worth their time, doubled by each failed trial
GAIN_RATE = 0.125  # of learning what drafts gain; steps without any count too
FIRST_MASKED = 3  # drafts that get masks for a first step


class Odds:
    """How often drafts of one kind were right: of one source, after a short or a long match.

    Drafts that are not worth their time pause. After that a single one is tried, and the pause doubles if it fails.
    """

    def __init__(self, start: float) -> None:
        self.right = [start] * MAX_DRAFTS  # probability by position
        self.resumes_at = 0  # length of the sequence
        self.is_trial = False  # the next draft is tried whatever it is worth
        self._pause = FIRST_PAUSE
        self._steps = 0  # with drafts

    def pause(self, length: int) -> None:
        """Pause, as the drafts are not worth their time. length: of the sequence."""
        self.resumes_at = length + self._pause
        self._pause = min(2 * self._pause, MAX_PAUSE)
        self.is_trial = True

    def learn(self, drafts: list[int], right: int) -> None:
        """Learn from positions that were in a step, of which those below `right` were right."""
        self.is_trial = False
        rate = max(RATE, 1.0 / (1.0 / FIRST_RATE + self._steps))
        self._steps += 1
        for position in drafts:
            self.right[position] += rate * ((position < right) - self.right[position])
        if right:
            self._pause = FIRST_PAUSE


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
        self.max_masked = FIRST_MASKED  # drafts that get masks before it is known which are in a step
        self.drafted: Counter[str] = Counter()  # tokens that were in a step, by source
        self.accepted: Counter[str] = Counter()  # of these, the ones in the answer
        self.odds: dict[tuple[str, bool], Odds] = {}  # by source, and whether the match is long
        self._mean_gain = 0.0  # tokens that drafts bring in a step
        self._forced = START_FORCED
        self._last_step = (0, 1)  # with drafts: length of the sequence after it, and the tokens that it yielded
        self._has_been_right = False

    def odds_of(self, draft: Draft) -> Odds:
        """Return the odds of drafts of the same kind."""
        kind = draft.source, draft.match >= LONG_MATCH
        if (odds := self.odds.get(kind)) is None:
            odds = self.odds[kind] = Odds(START[kind[1]])
        return odds

    def worths(self, draft: Draft) -> list[float]:
        """Return for each token the probability that it and all before it are right; for a trial, 1 and no further."""
        odds = self.odds_of(draft)
        if odds.is_trial and draft.source_of(0) != GRAMMAR:
            return [1.0]
        probabilities = odds.right[: len(draft.tokens)]
        if any(draft.is_forced):
            pairs = zip(draft.is_forced, probabilities, strict=True)
            probabilities = [self._forced if is_forced else right for is_forced, right in pairs]
        return _products(probabilities)

    @property
    def tokens_a_step(self) -> float:
        """Return the tokens that a step with a good match is expected to yield; 1 before any draft was right."""
        if not self._has_been_right:
            return 1.0
        return 1.0 + max([sum(_products(odds.right)) for odds in self.odds.values()], default=0.0)

    def tokens_of_step(self, length: int) -> int:
        """Return how many tokens the last step of the sequence yielded. length: of the sequence after it."""
        last_length, tokens = self._last_step
        return tokens if length == last_length else 1

    def may_try(self, source: str, length: int) -> bool:
        """Return whether drafts of a source do not pause, some of them at least. length: of the sequence."""
        return any(
            (source, is_long) not in self.odds or length >= self.odds[source, is_long].resumes_at
            for is_long in (False, True)
        )

    def may_use(self, draft: Draft, length: int) -> bool:
        """Return whether drafts of this kind do not pause."""
        return length >= self.odds_of(draft).resumes_at

    def decline(self, length: int) -> None:
        """Pause drafts like the current one, which is not worth its time. length: of the sequence."""
        if self.draft.source_of(0) != GRAMMAR:
            self.odds_of(self.draft).pause(length)

    def expect_masked(self, drafts: int) -> None:
        """Expect that the next step has not many more drafts than the current one."""
        self.max_masked = min(MAX_DRAFTS, 2 * drafts + 1)

    def learn_gain(self, tokens: float) -> float:
        """Learn how many tokens drafts are expected to bring in a step, and return the mean of the latest steps."""
        self._mean_gain += GAIN_RATE * (tokens - self._mean_gain)
        return self._mean_gain

    def count_drafted(self, tokens: int) -> None:
        """Count the first tokens of the draft, which are in a step."""
        self.drafted.update([self.draft.source_of(index) for index in range(tokens)])

    def count_accepted(self, index: int) -> None:
        """Count one of them as a token of the answer."""
        self.accepted[self.draft.source_of(index)] += 1

    def learn(self, drafts: int, right: int, length: int) -> None:
        """Learn from a step with `drafts` tokens, of which the first `right` were right.

        length: of the sequence after it.
        """
        self._last_step = length, 1 + right
        reached = range(min(right + 1, drafts))
        forced = [position for position in reached if self.draft.source_of(position) == GRAMMAR]
        for position in forced:
            self._forced += RATE * ((position < right) - self._forced)
        if right:
            self._has_been_right = True
        if len(forced) < len(reached):
            self.odds_of(self.draft).learn([position for position in reached if position not in forced], right)


def _products(factors: list[float]) -> list[float]:
    """Return the product of the first factor, the first two, and so on."""
    return list(accumulate(factors, mul))
