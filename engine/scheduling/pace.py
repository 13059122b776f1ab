"""What steps cost, learnt from those that were made: the costs measured at start are a first guess, from three steps on
a machine that may have been busy just then.

A step of decodes takes a base and so much for each row: a least-squares line whose memory fades (recursive least
squares with a forgetting factor), through steps with few prompt tokens too, less what those take, and held by what a
lone row takes. What a step with prompts takes beyond its rows is laid to their tokens. What a lone row takes is a low
expectile of what was seen (Newey and Powell, 1987): noise only ever adds to a step, but the fastest of all may have
been a quiet moment's. Where nobody is alone, a step of many rows says it too, as far as the line reaches down to one.
How much rides along with whom depends on it, and when a deadline is given up; no text does.
"""

from __future__ import annotations

from engine.scheduling.costs import Costs
from engine.scheduling.sequence import Sequence

FADE = 0.998  # of what is known of rows, with each step that tells of them: half of it is forgotten in 350
FADE_PROMPTS = 0.98  # of what is known of tokens, with each step that reads prompts
GUESS = 20.0  # steps that the costs measured at start count for
GUESS_TOKENS = 128  # in each of them
MOSTLY = 2.0  # times what its rows are foreseen to take, below which a step with prompts tells of rows too
STRAY = 4.0  # times what was foreseen, beyond which a step was held up by something else
STRAYS = 50  # in a row, after which it is the machine that has become slower
FALL = 0.2  # of the way to what a step took that was faster than a lone one is held to be
RISE = 0.02  # and to what a lone one took that was slower
LONE = 2  # rows up to which a step says by itself what a lone one takes
ANCHOR = 10.0  # steps that what a lone one takes counts for, beside those that were seen
REACH = 3.0  # standard deviations of the rows from their mean, as far as the line can be believed
HURRY = 0.5  # of the time that is foreseen: a promise is given up only when not even that is left
FEWEST = 0.25  # variance of the rows below which their price cannot be told


class Pace:
    """Seconds of a step by its rows and prompt tokens."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self.row_seconds = costs.row_seconds
        self.lone_seconds = costs.decode_seconds  # of a step in which one decodes, mostly without its neighbours' noise
        self.token_seconds = 1 / costs.prefill_tokens_per_second  # of a prompt token that rides in a step
        self._base = costs.decode_seconds - costs.row_seconds
        # Sums over the steps seen, fading: their number, rows, seconds, rows squared, rows times seconds.
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        if costs.decode_seconds:
            for rows in (1, 8):
                self._add(rows, self.step_seconds(rows), GUESS / 2)
        self._strays = [0, 0]  # in a row, of steps of decodes alone and of those with prompts
        # Of the steps with prompts: tokens squared, and tokens times seconds.
        self._tt = GUESS * GUESS_TOKENS**2
        self._ts = self._tt * self.token_seconds

    def step_seconds(self, rows: int) -> float:
        """Of a step in which so many decode."""
        return max(0.0, self._base + rows * self.row_seconds)

    def prompt_seconds(self, tokens: int) -> float:
        """What so many prompt tokens add to a step."""
        return tokens * self.token_seconds

    def seconds(self, rows: int, tokens: int) -> float:
        """Of a step in which `rows` decode and `tokens` of prompts are read."""
        return self.step_seconds(rows) + self.prompt_seconds(tokens)

    def least_seconds(self, sequence: Sequence, cached_tokens: int = 0) -> float:
        """What is left of `sequence` cannot be done in less, alone on the machine and with luck: what it has said may
        be all but its last token, unless its caller asked for more; and the machine may be as fast as it ever was said
        to be, at start or by now."""
        missing = sequence.num_tokens - max(sequence.num_computed, cached_tokens) - 1
        a_token = min(self.token_seconds, self._costs.prefill_seconds(1))
        a_step = min(self.lone_seconds, self._costs.decode_seconds)
        return HURRY * (max(0, missing) * a_token + sequence.least_remaining * a_step)

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """A step of `rows` decodes, `tokens` prompt tokens and nothing else took that long."""
        foreseen = self.seconds(rows, tokens)
        if seconds <= 0.0:
            return
        strays, kind = self._strays, bool(tokens)
        strays[kind] = strays[kind] + 1 if foreseen and seconds > STRAY * foreseen else 0
        if 0 < strays[kind] <= STRAYS:
            return
        if tokens:
            for_rows = self.step_seconds(rows)
            extra = max(0.0, seconds - for_rows)
            if rows and foreseen < MOSTLY * for_rows:
                self._learn_rows(rows, max(0.0, seconds - self.prompt_seconds(tokens)))
            self._tt = FADE_PROMPTS * self._tt + tokens * tokens
            self._ts = FADE_PROMPTS * self._ts + tokens * extra
            self.token_seconds = self._ts / self._tt
        elif rows:
            self._learn_rows(rows, seconds)
            if foreseen < STRAY * seconds:
                self._learn_lone(rows, seconds)

    def _learn_rows(self, rows: int, seconds: float) -> None:
        self._n, self._x, self._y = FADE * self._n, FADE * self._x, FADE * self._y
        self._xx, self._xy = FADE * self._xx, FADE * self._xy
        self._add(rows, seconds, 1.0)
        # A lone step, which is known, holds the line where rows hardly differ and are many: by themselves they would
        # say what one costs by how their contexts grow.
        held = ANCHOR if self.lone_seconds else 0.0
        lone = held * self.lone_seconds
        n, x, y = self._n + held, self._x + held, self._y + lone
        mean = x / n
        variance = (self._xx + held) / n - mean * mean
        if variance >= FEWEST:
            self.row_seconds = max(0.0, ((self._xy + lone) / n - mean * y / n) / variance)
        self._base = y / n - mean * self.row_seconds

    def _learn_lone(self, rows: int, seconds: float) -> None:
        is_known = rows <= LONE or self._reaches_one
        if rows > LONE and is_known:
            # In proportion, as what makes a machine fast or slow does it to every step.
            seconds *= self.step_seconds(1) / self.step_seconds(rows)
        if seconds < self.lone_seconds:  # in any case: it takes no longer than one with more rows
            self.lone_seconds += FALL * (seconds - self.lone_seconds)
        elif is_known and self.lone_seconds:
            self.lone_seconds += RISE * (seconds - self.lone_seconds)

    @property
    def _reaches_one(self) -> bool:
        """Whether rows have differed enough for the line to say what a lone one takes."""
        mean = self._x / self._n
        variance = self._xx / self._n - mean * mean
        return (mean - 1) ** 2 <= REACH * REACH * variance and self.step_seconds(1) > 0.0

    def _add(self, rows: int, seconds: float, weight: float) -> None:
        self._n += weight
        self._x += weight * rows
        self._y += weight * seconds
        self._xx += weight * rows * rows
        self._xy += weight * rows * seconds
