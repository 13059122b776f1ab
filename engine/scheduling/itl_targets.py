"""Time targets of a step that carries prompts: how long it may take beside running streams, and in which order prompts
are read (docs/decisions/0029).

A step may last until the earliest next token is due at its stream's target pace, and never longer than the target of
any stream in it; for a single prompt two thirds of that. It uses this time only as far as prompts are urgent: by how
long they have waited and how much of them is left to compute. The pace is a token deadline as in Andes (Liu et al.,
2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from engine.config import EngineConfig
from engine.scheduling.sequence import Sequence
from engine.types import ServiceClass

PLANNED_SHARE = 0.95  # of a target, for a step takes at times longer than estimated
TTFT_URGENT_SECONDS = 1.0  # waited and still to compute, at which prompts get the full target (Nielsen, 1993)
LONE_PROMPT_SHARE = 2 / 3  # of a target, for a single prompt: many streams would slow down for one
MANY_PROMPTS = 4  # from which on they get the full target
MAX_LAG_SECONDS = 0.5  # a stream that is further behind its pace than this catches up only so much
AGEING = 4.0  # a prompt that takes a second to compute is overtaken only by prompts less than so many seconds younger


class ItlTargets:
    """Targets for the time between tokens (ITL) by class, and each stream's token deadlines under its target."""

    def __init__(self, config: EngineConfig) -> None:
        self._targets = {
            ServiceClass.INTERACTIVE: config.target_itl("target_itl_interactive"),
            ServiceClass.STANDARD: config.target_itl("target_itl_standard"),
            ServiceClass.BATCH: config.target_itl("target_itl_batch"),
        }

    def step_seconds(
        self, decodes: Iterable[Sequence], prompts: list[Sequence], token_seconds: float, now: float
    ) -> tuple[float, float]:
        """Return the longest step that keeps every stream of `decodes` at its target, and the urgency (0 to 1) of
        `prompts` at `token_seconds` a token."""
        planned = _planned_share(len(prompts))
        longest = math.inf
        for sequence in decodes:
            target = self._targets[sequence.service_class]
            longest = min(longest, planned * target, self._next_due(sequence, target, now) - now)
        waited = max((now - s.waiting_since for s in prompts), default=0.0)
        left = token_seconds * sum([s.num_uncomputed for s in prompts])
        return max(0.0, longest), min(1.0, (waited + left) / TTFT_URGENT_SECONDS)

    @staticmethod
    def _next_due(sequence: Sequence, target: float, now: float) -> float:
        """When the next token of a stream is due, one target after the last one was. Tokens that came early are
        credit."""
        if not sequence.paced_tokens:
            sequence.next_due = now + target
        else:
            sequence.next_due += (sequence.num_tokens - sequence.paced_tokens) * target
        sequence.paced_tokens = sequence.num_tokens
        sequence.next_due = max(sequence.next_due, now - MAX_LAG_SECONDS)
        return sequence.next_due


def _planned_share(prompts: int) -> float:
    """Return the share of a target that a step with so many prompts is planned to take."""
    crowd = min(1.0, max(0, prompts - 1) / (MANY_PROMPTS - 1))
    return PLANNED_SHARE * (LONE_PROMPT_SHARE + (1 - LONE_PROMPT_SHARE) * crowd)


def prefill_rank(sequence: Sequence, token_seconds: float) -> tuple[float, ...]:
    """Sort key of a tenant's prompts: priority, deadline, then shortest remaining prefill first, aged: each second of
    waiting outweighs 1 / `AGEING` seconds of prefill."""
    request = sequence.request
    deadline = math.inf if request.deadline is None else request.deadline
    virtual_start = sequence.waiting_since + AGEING * token_seconds * sequence.num_uncomputed
    return (request.priority, deadline, virtual_start, sequence.arrival, sequence.choice)
