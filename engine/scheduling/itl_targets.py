"""Time limits of steps that carry prompts beside running streams, and the order of prompts (docs/decisions/0029).

A step may last until the earliest next token is due at its stream's target pace, but never longer than the target of
any stream in it; for a single prompt two thirds of that. It uses this time only as far as prompts are urgent, measured
by the time they have waited and the work left. The pace is a token deadline as in Andes (Liu et al., 2024).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from engine.config import EngineConfig
from engine.scheduling.carousel_state import CarouselState
from engine.scheduling.policy import MIN_PROMPT_SHARE
from engine.scheduling.sequence import Sequence
from engine.types import ServiceClass

log = logging.getLogger("carousel.engine")

PLANNED_SHARE = 0.95  # of a target, because a step sometimes takes longer than estimated
# Sum of time waited and time left to compute at which prompts get the full target (Nielsen, 1993).
TTFT_URGENT_SECONDS = 1.0
SINGLE_PROMPT_SHARE = 2 / 3  # of a target, for a single prompt: many streams would slow down for one
FULL_TARGET_PROMPTS = 4  # number of prompts from which on they get the full target
WARNING_SECONDS = 600.0  # between two warnings about targets that cannot be met
MAX_LAG_SECONDS = 0.5  # a stream that lags further behind its pace catches up only this much
AGEING = 4.0  # a prompt that takes a second to compute is overtaken only by prompts less than this many seconds younger


class ItlTargets:
    """Targets for the time between tokens (ITL) by class, and each stream's token deadlines under its target."""

    def __init__(self, config: EngineConfig) -> None:
        self._warn_at = -math.inf
        self._targets = {
            ServiceClass.INTERACTIVE: config.target_itl("target_itl_interactive"),
            ServiceClass.STANDARD: config.target_itl("target_itl_standard"),
            ServiceClass.BATCH: config.target_itl("target_itl_batch"),
        }

    def step_seconds(
        self, decodes: Iterable[Sequence], prompts: list[Sequence], token_seconds: float, now: float
    ) -> tuple[float, float]:
        """Return the longest allowed step in seconds and the urgency of `prompts`, from 0 to 1.

        The step keeps every stream of `decodes` at its target. The urgency depends on `token_seconds`, the time per
        prompt token.
        """
        planned = _planned_share(len(prompts))
        longest = math.inf
        for sequence in decodes:
            target = self._targets[sequence.service_class]
            longest = min(longest, planned * target, self._next_due(sequence, target, now) - now)
        waited = max((now - s.waiting_since for s in prompts), default=0.0)
        left = token_seconds * sum([s.num_uncomputed for s in prompts])
        return max(0.0, longest), min(1.0, (waited + left) / TTFT_URGENT_SECONDS)

    def check(self, decodes: Iterable[Sequence], row_seconds: float, now: float) -> None:
        """Warn, from time to time, if rows alone take longer than a target."""
        target, service_class = min((self._targets[s.service_class], s.service_class) for s in decodes)
        if row_seconds > target and now >= self._warn_at:
            self._warn_at = now + WARNING_SECONDS
            log.warning(
                "a step of the running answers takes %.2f s on this machine, longer than --target-itl-%s %g; beside "
                "prompts it takes up to %.2f s",
                row_seconds,
                service_class.name.lower(),
                target,
                (1 + MIN_PROMPT_SHARE) * row_seconds,
            )

    @staticmethod
    def _next_due(sequence: Sequence, target: float, now: float) -> float:
        """Return when the next token of a stream is due, one target after the last. Early tokens count as credit."""
        state: CarouselState = sequence.policy_state
        if not state.paced_tokens:
            due = now + target
        else:
            due = state.next_token_due + (sequence.num_tokens - state.paced_tokens) * target
        state.paced_tokens = sequence.num_tokens
        state.next_token_due = due = max(due, now - MAX_LAG_SECONDS)
        return due


def _planned_share(prompts: int) -> float:
    """Return the share of a target that a step with `prompts` prompts is planned to take."""
    crowd = min(1.0, max(0, prompts - 1) / (FULL_TARGET_PROMPTS - 1))
    return PLANNED_SHARE * (SINGLE_PROMPT_SHARE + (1 - SINGLE_PROMPT_SHARE) * crowd)


def prefill_rank(sequence: Sequence, token_seconds: float) -> tuple[float, ...]:
    """Return the sort key of a tenant's prompts: priority, deadline, then shortest remaining prefill, with ageing.

    Each second of waiting outweighs 1 / `AGEING` seconds of prefill.
    """
    request = sequence.request
    deadline = math.inf if request.deadline is None else request.deadline
    virtual_start = sequence.waiting_since + AGEING * token_seconds * sequence.num_uncomputed
    return (request.priority, deadline, virtual_start, sequence.arrival, sequence.choice)
