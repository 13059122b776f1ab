"""Contents of a step under the carousel policy: its rules 6 to 8 for prompts and piggybacked rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from itertools import chain

from engine.config import EngineConfig
from engine.scheduling.carousel_state import state_of
from engine.scheduling.costs import Costs
from engine.scheduling.itl_targets import ItlTargets, prefill_rank
from engine.scheduling.policy import Policy, StepShares
from engine.scheduling.sequence import Sequence
from engine.types import ServiceClass

BATCH = ServiceClass.BATCH
OVERDUE_SLOT_DIVISOR = 8
PIGGYBACK_SHARE = 16  # one in this many rows of lower classes piggybacks at any cost
PATIENT_SHARE = 0.25  # of the allowed slowdown that applies when a sequence is about to be overdue
MIN_PIGGYBACK_TOKENS = 8  # prompt work of lower classes in each step, unless its prompts have less in all


@dataclass(frozen=True, slots=True)
class Candidates:
    """Sequences that could be in a step, by the highest class among them."""

    highest: ServiceClass
    decodes: list[Sequence]
    lower_decodes: list[Sequence]  # of lower classes, without a guarantee: they may be held back
    overdue_prompts: list[Sequence]
    highest_prompts: list[Sequence]
    lower_prompts: list[Sequence]

    @property
    def num_higher(self) -> int:
        """Return the number of rows that are in the step at any cost."""
        return len(self.decodes) - len(self.lower_decodes)

    @property
    def has_overdue_piggyback(self) -> bool:
        """Return whether overdue prompts piggyback on a higher class."""
        return bool(self.overdue_prompts) and self.overdue_prompts[0].service_class > self.highest

    @property
    def has_piggyback(self) -> bool:
        """Return whether lower classes run beside the highest one."""
        has_lower = bool(self.lower_decodes or self.lower_prompts or self.has_overdue_piggyback)
        return has_lower and bool(self.highest_prompts or self.num_higher)

    @property
    def num_paced(self) -> int:
        """Return the number of decoding rows that keep an ITL target; batch rows do in a step of their own only."""
        if self.highest == BATCH:
            return len(self.decodes)
        return sum([s.service_class < BATCH for s in self.decodes])


class StepSharing(Policy):
    """Policy that shares a step between classes, overdue sequences and tenants."""

    def __init__(self, config: EngineConfig, costs: Costs) -> None:
        super().__init__(config, costs)
        self.max_wait = {
            ServiceClass.INTERACTIVE: math.inf,
            ServiceClass.STANDARD: config.max_wait_standard,
            ServiceClass.BATCH: config.max_wait_batch,
        }
        self._targets = ItlTargets(config)

    @abstractmethod
    def _urgency(self, now: float) -> float:
        """Return how close the nearest waiting sequence is to being overdue, from 0 to 1."""

    def share(self, decodes: list[Sequence], prefilling: list[Sequence], step: int, now: float) -> StepShares:
        """Apply rules 6 to 8."""
        if not prefilling and decodes[0].service_class == decodes[-1].service_class:  # true of most steps
            return StepShares(decodes, [], [])
        candidates = _candidates(decodes, prefilling, now)
        rows, spare_seconds = self._piggyback(candidates, now)
        prompts = self._prompts(candidates, rows, spare_seconds, now)
        lower_decodes = candidates.lower_decodes
        if rows == len(lower_decodes):
            return StepShares(decodes, [], prompts)
        lower_decodes.sort(key=lambda s: (state_of(s).last_piggyback_step, s.service_class))
        for sequence in lower_decodes[:rows]:
            state_of(sequence).last_piggyback_step = step
        held_back = {id(s) for s in lower_decodes[rows:]}
        return StepShares([s for s in decodes if id(s) not in held_back], lower_decodes[rows:], prompts)

    def _piggyback(self, candidates: Candidates, now: float) -> tuple[int, float]:
        """Return how many lower rows join the step, and the seconds by which lower classes may lengthen it (rule 8)."""
        num_lower = len(candidates.lower_decodes)
        if not candidates.has_piggyback or math.isinf(self.config.max_step_slowdown):
            return num_lower, math.inf
        urgency = 1.0 if candidates.overdue_prompts else self._urgency(now)
        extra_share = (self.config.max_step_slowdown - 1) * (PATIENT_SHARE + (1 - PATIENT_SHARE) * urgency)
        spare_seconds = extra_share * self.step_time_model.step_seconds(candidates.num_higher)
        row_seconds = self.step_time_model.row_seconds
        affordable = int(min(spare_seconds / row_seconds, num_lower)) if row_seconds else num_lower
        return max(-(-num_lower // PIGGYBACK_SHARE), affordable), spare_seconds

    def _prompts(
        self, candidates: Candidates, rows: int, spare_seconds: float, now: float
    ) -> list[tuple[list[Sequence], int]]:
        """Return groups of prompts in order, each with its maximum work, beside `rows` rows of lower classes."""
        num_rows, paced = candidates.num_higher + rows, candidates.num_paced
        overdue, highest = candidates.overdue_prompts, candidates.highest_prompts
        urgent_seconds = self._urgent_seconds(candidates.decodes[:paced], [*overdue, *highest], num_rows, now)
        budget = self.prompt_tokens(paced, max(0, num_rows - paced), urgent_seconds)
        spare_tokens = (spare_seconds - rows * self.step_time_model.row_seconds) / max(
            self.step_time_model.token_seconds, 1e-9
        )
        piggyback_tokens = min(spare_tokens, budget)
        prompts = []
        if overdue:
            max_tokens = budget - sum([s.num_uncomputed for s in highest])
            if candidates.has_overdue_piggyback:
                late_tokens = piggyback_tokens + (budget - piggyback_tokens) * self._lateness(overdue, now)
                max_tokens = min(max_tokens, int(late_tokens))
            max_tokens = max(1, budget // OVERDUE_SLOT_DIVISOR, max_tokens)
            prompts.append((overdue, max_tokens))
            if candidates.has_overdue_piggyback:
                piggyback_tokens -= min(max_tokens, sum([s.num_uncomputed for s in overdue]))
        prompts.append((self._in_turn(highest), budget))
        if candidates.lower_prompts:
            max_tokens = max(min(MIN_PIGGYBACK_TOKENS, budget), int(piggyback_tokens))
            prompts.append((self._in_turn(candidates.lower_prompts), max_tokens))
        return prompts

    def _urgent_seconds(self, paced: list[Sequence], prompts: list[Sequence], rows: int, now: float) -> float:
        """Return the seconds for `prompts` in a step of `rows`, within the targets of the `paced` streams (rule 7)."""
        if not paced:
            return 0.0
        longest, urgency = self._targets.step_seconds(paced, prompts, self.step_time_model.token_seconds, now)
        row_seconds = self.step_time_model.step_seconds(rows)
        self._targets.check(paced, row_seconds, now)
        return urgency * max(0.0, longest - row_seconds)

    def _lateness(self, overdue: list[Sequence], now: float) -> float:
        """Return how far the latest of `overdue` is past its bound: 0 at the bound, 1 at twice the bound."""
        bounds = ((s, self.max_wait[s.service_class]) for s in overdue)
        return max((now - state_of(s).overdue_at) / bound if bound else 1.0 for s, bound in bounds)

    def _in_turn(self, prefilling: list[Sequence]) -> list[Sequence]:
        """Return the prompts by class, then by their tenants' service, then by `prefill_rank`."""
        if len(prefilling) < 2:
            return prefilling
        token_seconds = self.step_time_model.token_seconds
        return sorted(
            prefilling, key=lambda s: (s.service_class, state_of(s).account.served, *prefill_rank(s, token_seconds))
        )


def _candidates(decodes: list[Sequence], prefilling: list[Sequence], now: float) -> Candidates:
    """Group the sequences of a step; both lists are sorted by class."""
    highest = min(s.service_class for s in chain(decodes[:1], prefilling[:1]))
    # A sequence that was admitted in time is not overdue for a while, so this list is empty in most steps.
    overdue = [s for s in prefilling if state_of(s).is_protected or now >= state_of(s).overdue_at]
    late = set(overdue)
    punctual = [s for s in prefilling if s not in late] if late else prefilling
    highest_prompts = [s for s in punctual if s.service_class == highest]
    lower_prompts = punctual[len(highest_prompts) :]
    lower_decodes = [s for s in decodes if s.service_class > highest and not state_of(s).is_protected]
    return Candidates(highest, decodes, lower_decodes, overdue, highest_prompts, lower_prompts)
