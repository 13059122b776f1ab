"""Step-time model learnt from completed steps.

The costs measured at startup are only a first estimate: they come from three steps on a machine that may have been busy
at that time.

A decode step takes a base time plus a time per row. The line is fitted by recursive least squares with a forgetting
factor. Steps with few prompt tokens contribute too, after subtraction of the prompt time, and the known time of a
single-row step anchors the line. Time beyond the rows' share in a step with prompts is attributed to the prompt tokens.
A step of prompts alone has a base time of its own: on a GPU it is launched operation by operation, which takes the
host as long for a few tokens as for many. Without it, tokens of short chunks would seem expensive, and chunks would
become even shorter.

The time of a single-row step is a low expectile of the observed times (Newey and Powell, 1987). Noise only ever
lengthens a step, but the minimum may come from one unusually quiet moment. If no step has a single row, steps of many
rows are scaled down to one, as far as the line can be extrapolated.

Prompts are counted in units of work (`engine.prompt_pace`); on a processor a token at position 4,000 of a small model
takes twice as long as the first one.

Piggybacked work and the detection of unreachable deadlines depend on this model; generated text does not.
"""

from __future__ import annotations

import math

from engine.prompt_pace import PromptPace, prompt_work
from engine.scheduling.costs import Costs
from engine.scheduling.draft_costs import DraftCosts
from engine.scheduling.sequence import Sequence

ROW_FORGETTING = 0.998  # forgetting factor of the row fit per observed step: half the weight is gone after 350
PROMPT_FORGETTING = 0.98  # forgetting factor of the prompt-token fit per observed step with prompts
STARTUP_STEPS = 20.0  # steps; weight of the costs measured at startup
STARTUP_PROMPT_TOKENS = 128  # prompt tokens in each of these steps
MAX_PROMPT_BASE = 0.9  # share of the mean time of steps of prompts alone, so that no token seems to be free
MIN_WORK_DEVIATION = 0.1  # of the mean work of such steps, below which their base time cannot be fitted
MAX_PROMPT_TIME_RATIO = 2.0  # times the rows' estimate, below which a step with prompts contributes to the row fit
OUTLIER_RATIO = 4.0  # times the estimate, above which a step is treated as an outlier
MAX_OUTLIERS = 50  # consecutive outliers, after which the machine is assumed to have become slower
FALL_RATE = 0.2  # fraction of the way down to the time of a step faster than the single-row estimate
RISE_RATE = 0.02  # fraction of the way up to the time of a slower single-row step
MAX_SINGLE_ROWS = 2  # rows up to which a step is a direct sample of the single-row time
ANCHOR_STEPS = 10.0  # steps; weight of the single-row time beside the observed steps
MAX_SIGMAS = 3.0  # standard deviations of the rows from their mean, within which the line is trusted
OPTIMISTIC_SHARE = 0.5  # fraction of the estimate; a deadline is given up only if not even this much time is left
MAX_DRAFT_GUESS = 0.4  # of a single-row step, so that no measurement of rows rules out drafts for ever
MIN_ROW_VARIANCE = 0.25  # variance of the row count, below which the time per row cannot be fitted


class StepTimeModel:
    """Seconds of a step as a function of its decode rows and prompt tokens."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self.row_seconds = costs.row_seconds
        self.single_row_seconds = (
            costs.decode_seconds
        )  # of a step with one decode row, mostly free of neighbours' noise
        self.token_seconds = 1 / costs.prefill_tokens_per_second  # per unit of prompt work in a step
        self._base = costs.decode_seconds - costs.row_seconds
        # Fading sums over the observed steps: count, rows, seconds, rows squared, rows times seconds.
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        if costs.decode_seconds:
            for rows in (1, 8):
                self._add(rows, self.step_seconds(rows), STARTUP_STEPS / 2)
        self._drafts = DraftCosts()
        self._outliers = [0, 0]  # consecutive outliers, of decode-only steps and of steps with prompts
        self.prompt_base = self._base  # of a step of prompts alone
        # Fading sums over the steps with rows and prompts: work squared, and work times seconds beyond the rows.
        self._tt = STARTUP_STEPS * STARTUP_PROMPT_TOKENS**2
        self._ts = self._tt * self.token_seconds
        # Over the steps of prompts alone: count, work, seconds, work squared, work times seconds.
        self._alone = (0.0, 0.0, 0.0, 0.0, 0.0)

    def step_seconds(self, rows: int) -> float:
        """Return the seconds of a step with `rows` decode rows."""
        return max(0.0, self._base + rows * self.row_seconds)

    def with_drafts(self, rows: int) -> tuple[float, float]:
        """Return the seconds of a step with `rows` sequences that decode, and those of each draft in it."""
        if (expected := self.step_seconds(rows)) <= 0.0:
            return 0.0, 0.0
        return self._drafts.fit(expected, min(self.row_seconds, MAX_DRAFT_GUESS * self.step_seconds(1)))

    def work(self, start: int, length: int) -> float:
        """Return `prompt_work` of this model."""
        return prompt_work(start, length, self._costs.attention_ratio)

    def tokens_within(self, work: float, start: int) -> int:
        """Return how many prompt tokens from position `start` on take at most this work."""
        half, linear = self._costs.attention_ratio / 2, 1.0 + self._costs.attention_ratio * start
        # The positive root of half * n^2 + linear * n = work, in a form without cancellation.
        return int(2 * work / (linear + math.sqrt(linear * linear + 4 * half * work)))

    def prompt_seconds(self, work: float) -> float:
        """Return the seconds that prompt work adds to a step."""
        return work * self.token_seconds

    def seconds(self, rows: int, work: float) -> float:
        """Return the seconds of a step with `rows` decode rows and prompt work."""
        return (self.step_seconds(rows) if rows else self.prompt_base) + self.prompt_seconds(work)

    def prompt_pace(self, rows: int, work: float) -> PromptPace:
        """Return the costs of steps with `rows` decode rows and this prompt work."""
        seconds = self.seconds(rows, 0.0)
        return PromptPace(seconds, work, self.token_seconds, self._costs.attention_ratio)

    def min_seconds_left(self, sequence: Sequence, cached_tokens: int = 0) -> float:
        """Return a lower bound on the seconds that `sequence` still needs.

        Assumes that it has the machine to itself, at the fastest speed measured at startup or since. The next token may
        be its last unless the caller requires more.
        """
        missing = sequence.num_tokens - max(sequence.num_computed, cached_tokens) - 1
        token_time = min(self.token_seconds, self._costs.prefill_seconds(1))
        step_time = min(self.single_row_seconds, self._costs.decode_seconds)
        tokens_a_step = 1.0 if sequence.speculator is None else sequence.speculator.tokens_a_step
        steps = sequence.min_remaining_tokens / tokens_a_step
        return OPTIMISTIC_SHARE * (max(0, missing) * token_time + steps * step_time)

    def observe(self, rows: int, work: float, seconds: float, drafts: int = 0) -> None:
        """Learn from a step without page moves: `rows` sequences that decode, drafts and prompt work took `seconds`."""
        estimate = self.seconds(rows, work)
        if seconds <= 0.0:
            return
        if drafts:
            of_drafts = drafts * self.with_drafts(rows)[1]
            estimate += of_drafts
        outliers, kind = self._outliers, bool(work)
        outliers[kind] = outliers[kind] + 1 if estimate and seconds > OUTLIER_RATIO * estimate else 0
        if 0 < outliers[kind] <= MAX_OUTLIERS:
            return
        if work:
            self._learn_prompts(rows, work, seconds, estimate)
        elif rows:
            if (expected := self.step_seconds(rows)) > 0.0:
                self._drafts.observe(expected, drafts, seconds)
            if drafts:
                seconds = max(0.0, seconds - of_drafts)
            self._learn_rows(rows, seconds)
            if estimate < OUTLIER_RATIO * seconds:
                self._learn_single_row(rows, seconds)

    def _learn_prompts(self, rows: int, work: float, seconds: float, estimate: float) -> None:
        row_time = self.step_seconds(rows)
        if rows and estimate < MAX_PROMPT_TIME_RATIO * row_time:
            self._learn_rows(rows, max(0.0, seconds - self.prompt_seconds(work)))
        self._tt, self._ts = PROMPT_FORGETTING * self._tt, PROMPT_FORGETTING * self._ts
        n, x, y, xx, xy = (PROMPT_FORGETTING * value for value in self._alone)
        if rows:
            self._tt += work * work
            self._ts += work * max(0.0, seconds - row_time)
        else:
            n, x, y, xx, xy = n + 1.0, x + work, y + seconds, xx + work * work, xy + work * seconds
            variance = xx / n - (x / n) ** 2
            if variance >= (MIN_WORK_DEVIATION * x / n) ** 2:
                slope = (xy / n - x / n * y / n) / variance
                self.prompt_base = max(0.0, min(y / n - slope * x / n, MAX_PROMPT_BASE * y / n))
        self._alone = (n, x, y, xx, xy)
        self.token_seconds = max(0.0, self._ts + xy - self.prompt_base * x) / (self._tt + xx)

    def _learn_rows(self, rows: int, seconds: float) -> None:
        self._n, self._x, self._y = ROW_FORGETTING * self._n, ROW_FORGETTING * self._x, ROW_FORGETTING * self._y
        self._xx, self._xy = ROW_FORGETTING * self._xx, ROW_FORGETTING * self._xy
        self._add(rows, seconds, 1.0)
        # The known single-row time anchors the line where row counts are high and hardly differ. Without it, the fit
        # would attribute growing contexts to the rows.
        weight = ANCHOR_STEPS if self.single_row_seconds else 0.0
        weighted_seconds = weight * self.single_row_seconds
        n, x, y = self._n + weight, self._x + weight, self._y + weighted_seconds
        mean = x / n
        variance = (self._xx + weight) / n - mean * mean
        if variance >= MIN_ROW_VARIANCE:
            self.row_seconds = max(0.0, ((self._xy + weighted_seconds) / n - mean * y / n) / variance)
        self._base = y / n - mean * self.row_seconds

    def _learn_single_row(self, rows: int, seconds: float) -> None:
        is_sample = rows <= MAX_SINGLE_ROWS or self._can_extrapolate
        if rows > MAX_SINGLE_ROWS and is_sample:
            # Scale in proportion: a change of the machine's speed affects every step alike.
            seconds *= self.step_seconds(1) / self.step_seconds(rows)
        if seconds < self.single_row_seconds:  # in any case: a single-row step is not slower than one with more rows
            self.single_row_seconds += FALL_RATE * (seconds - self.single_row_seconds)
        elif is_sample and self.single_row_seconds:
            self.single_row_seconds += RISE_RATE * (seconds - self.single_row_seconds)

    @property
    def _can_extrapolate(self) -> bool:
        """Return whether row counts have varied enough to extrapolate the line to a single row."""
        mean = self._x / self._n
        variance = self._xx / self._n - mean * mean
        return (mean - 1) ** 2 <= MAX_SIGMAS * MAX_SIGMAS * variance and self.step_seconds(1) > 0.0

    def _add(self, rows: int, seconds: float, weight: float) -> None:
        self._n += weight
        self._x += weight * rows
        self._y += weight * seconds
        self._xx += weight * rows * rows
        self._xy += weight * rows * seconds
