"""Pace at which an engine reads prompts, from which an API process estimates the time to a first token.

Prompts are counted in units of work: the time of one token at the beginning of a prompt. A later token attends to all
earlier ones, which takes `attention_ratio` of a unit for each of them.
"""

from __future__ import annotations

import math

import msgspec


def prompt_work(start: int, length: int, attention_ratio: float) -> float:
    """Return the work of `length` prompt tokens from position `start` on, at least `length`."""
    return length * (1.0 + attention_ratio * (start + length / 2))


class PromptPace(msgspec.Struct, frozen=True, array_like=True):
    """Costs of the next steps with prompts, beside the requests that are running.

    step_seconds: of a step without its prompt tokens. step_work: prompt work of a step. work_seconds: of a unit of
    work.
    """

    step_seconds: float
    step_work: float
    work_seconds: float
    attention_ratio: float

    def seconds(self, start: int, length: int) -> float:
        """Return the seconds in which a running request computes `length` prompt tokens from position `start` on."""
        work = prompt_work(start, length, self.attention_ratio)
        return math.ceil(work / self.step_work) * self.step_seconds + work * self.work_seconds
