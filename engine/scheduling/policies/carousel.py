"""Carousel's own scheduling policy. Its rules:

1. A waiting sequence may preempt running ones of a lower class. Within its own class it may preempt sequences of a
   tenant that has more slots than its share, as long as its own tenant has less. No tenant waits for the end of another
   tenant's flood. A share is the slots by weight among the tenants of the class that run or wait.
2. Inside a class tenants take turns by the service they received; within a slack, a tenant below its share of slots
   goes first (`engine.scheduling.fairness`). A tenant's own sequences go by priority, then deadline, then arrival.
3. The victim is of the lowest class. Within it, these are avoided in this order: the oldest sequence (against livelock
   under memory pressure); sequences that resumed from a preemption and have not run their minimum share; sequences of
   tenants that are not `MAX_SERVICE_GAP_TOKENS` ahead in service of another running tenant. Among the rest the victim
   is the sequence whose preemption costs the least machine time per page needed; then the latest.
4. If memory runs short while a running sequence grows, the same order picks the victim among all running sequences that
   are not of a higher class. The victim may be the growing sequence itself.
5. A victim's pages are either copied to host memory, or dropped with the exception of pages that the prefix cache
   keeps, whichever takes less time (`Policy.preemption_cost`).
6. A sequence of a lower class that waited longer than its bound is overdue. Overdue sequences go first, tenants in
   turn, but at most one in `OVERDUE_SLOT_DIVISOR` slots serves them at a time. With fewer slots than that, one slot
   serves them for that share of the steps while higher classes have requests: a flood of old batch jobs cannot shut out
   interactive users. An overdue sequence may preempt sequences of its own class too, and is guaranteed its slot for
   `min_share` tokens. If higher classes hold the pages it needs, it lets them pass; after twice its bound it lets
   nothing pass. Its prompt gets one in `OVERDUE_SLOT_DIVISOR` tokens of a step's budget before all others, and the
   tokens that others leave before the rest of its class: beside higher classes within the piggyback limit (rule 8),
   rising with its lateness to all of them at twice its bound. The clock of a preempted sequence continues unless it had
   generated its share: a sequence that was admitted and preempted at once had no service.
7. A step takes no more prompt tokens than are read in `step_seconds`, unless configured otherwise: a long prompt must
   not halt other streams for longer (stall-free schedule of Sarathi-Serve, Agrawal et al., OSDI'24). Where steps are
   recorded, it also takes no more than can be recorded with the decode rows. Urgent prompts get longer steps, up to the
   ITL targets of the streams in it, as long as all of these keep their pace (`engine.scheduling.itl_targets`). The
   prompts of a class share its tokens by their tenants' turns; a tenant's prompts are read in the order of priority,
   deadline and shortest remaining prefill, with ageing.
8. While a higher class is served, lower classes piggyback as far as they do not make a step too long, by the learnt
   cost of a row (`engine.scheduling.step_time_model`). The limit is `config.max_step_slowdown` times the duration for
   the higher classes' decode rows if a sequence is overdue or about to be, `PATIENT_SHARE` of that extra time if no
   sequence has waited, and no more in a step that also reads a higher-class prompt. At least one row in
   `PIGGYBACK_SHARE` piggybacks, in turn, and so do a few prompt tokens of lower classes. If extra rows are free, all of
   them join; with `max_step_slowdown=inf` every token of every row joins.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, count
from typing import Any

from engine.config import EngineConfig
from engine.scheduling.account import Account
from engine.scheduling.costs import Costs
from engine.scheduling.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT, FairQueue
from engine.scheduling.itl_targets import ItlTargets, prefill_rank
from engine.scheduling.policy import AdmissionContext, MemoryPressure, Policy, StepShares
from engine.scheduling.sequence import Sequence, State
from engine.types import ServiceClass, WaitReason

BATCH = ServiceClass.BATCH
OVERDUE_SLOT_DIVISOR = 8
MAX_SERVICE_GAP_TOKENS = 1024.0  # weighted tokens
PIGGYBACK_SHARE = 16  # one in this many rows of lower classes piggybacks at any cost
PATIENT_SHARE = 0.25  # of the allowed slowdown that applies when a sequence is about to be overdue
MIN_PIGGYBACK_TOKENS = 8  # prompt tokens of lower classes in each step


def _order(sequence: Sequence) -> tuple[Any, ...]:
    deadline = sequence.request.deadline
    return (
        sequence.request.priority,
        math.inf if deadline is None else deadline,
        sequence.arrival,
        sequence.choice,
    )


class Carousel(Policy):
    """Policy with a fair queue for each class, and one for overdue sequences."""

    name = "carousel"

    def __init__(self, config: EngineConfig, costs: Costs) -> None:
        super().__init__(config, costs)
        self._max_wait = {
            ServiceClass.INTERACTIVE: math.inf,
            ServiceClass.STANDARD: config.max_wait_standard,
            ServiceClass.BATCH: config.max_wait_batch,
        }
        self._overdue_slots = max(1, config.max_num_seqs // OVERDUE_SLOT_DIVISOR)
        # With fewer slots than that, a guarantee exceeds its share of them and is followed by this many steps without
        # one.
        has_few_slots = config.max_num_seqs < OVERDUE_SLOT_DIVISOR
        self._guarantee_steps = (
            math.ceil(config.min_share * OVERDUE_SLOT_DIVISOR / config.max_num_seqs) if has_few_slots else 0
        )
        self._steps_to_guarantee = 0  # steps until the next guarantee, as long as higher classes have requests
        self._queues = {c: FairQueue(_order, config.max_num_seqs) for c in ServiceClass}
        # Overdue sequences also keep their place in their class, so being overdue can only help.
        self._overdue_queue = FairQueue(lambda s: (s.overdue_at, s.arrival, s.choice), config.max_num_seqs)
        # When each sequence becomes overdue, earliest first. Entries of sequences that left are dropped at the top.
        self._alarms: dict[ServiceClass, list[tuple[float, int, Sequence]]] = {c: [] for c in ServiceClass}
        self._serial = count()
        self._targets = ItlTargets(config)

    # Queue --------------------------------------------------------------------------------------------------------

    def push(self, sequence: Sequence) -> None:
        """Queue `sequence` in its class; its clock runs from `waiting_since`."""
        sequence.account = self._queues[sequence.service_class].push(sequence)
        sequence.overdue_at = sequence.waiting_since + self._max_wait[sequence.service_class]
        if sequence.overdue_at < math.inf:
            heapq.heappush(self._alarms[sequence.service_class], (sequence.overdue_at, next(self._serial), sequence))

    def remove(self, sequence: Sequence) -> None:
        """Remove `sequence` from its class and from the overdue queue."""
        if sequence.is_overdue:
            self._overdue_queue.remove(sequence)
            sequence.is_overdue = False
        self._queues[sequence.service_class].remove(sequence)

    def in_order(self) -> Iterator[Sequence]:
        """Return the overdue sequences, then class by class."""
        by_class = (s for queue in self._queues.values() if queue for s in queue.in_order() if not s.is_overdue)
        return chain(self._overdue_queue.in_order(), by_class) if self._overdue_queue else by_class

    def num_ahead(self, sequence: Sequence) -> int:
        """Return the number of overdue sequences, which go before the first one of a class."""
        return 0 if sequence.is_overdue else len(self._overdue_queue)

    def wait_reason(self, sequence: Sequence) -> WaitReason:
        """Return whether a later arrival of the same class goes first, and the reason (rule 2)."""
        first = self._queues[sequence.service_class].head()
        if first is None or first.arrival <= sequence.arrival:
            return WaitReason.ORDER
        if first.account is sequence.account:
            by_priority = first.request.priority < sequence.request.priority
            return WaitReason.ORDER if by_priority or first.request.deadline is None else WaitReason.DEADLINE
        return WaitReason.FAIRNESS if first.account.served <= sequence.account.served else WaitReason.DEADLINE

    # A step -------------------------------------------------------------------------------------------------------

    def begin_step(self, now: float) -> None:
        """Move sequences that have waited past their class's bound into the overdue queue (rule 6)."""
        self._steps_to_guarantee = max(0, self._steps_to_guarantee - 1)
        for alarms in self._alarms.values():
            while alarms:
                due, _, sequence = alarms[0]
                is_waiting = sequence.state in (State.WAITING, State.PREEMPTED)
                if is_waiting and not sequence.is_overdue and due == sequence.overdue_at:
                    if due > now:
                        break
                    sequence.is_overdue = True
                    self._overdue_queue.push(sequence)
                heapq.heappop(alarms)

    def admit(self, stage: AdmissionContext, now: float) -> None:
        """Admit sequences in order until one does not fit.

        No sequence overtakes one that does not fit: resources that become free go to it. Only an overdue sequence lets
        higher classes pass, and not for ever (rule 6).
        """
        while True:
            overdue = self._overdue_queue.head() if self._overdue_queue and self._has_overdue_slot(stage) else None
            if overdue is not None and not self._must_yield(overdue, stage):
                if stage.try_start(overdue, partial(self._for_overdue, stage, overdue)):
                    overdue.guaranteed_tokens_left, overdue.has_guarantee = self.config.min_share, True
                    self._steps_to_guarantee = self._guarantee_steps
                    continue
                if (
                    overdue.cause is WaitReason.PAGES
                    and now >= overdue.overdue_at + self._max_wait[overdue.service_class]
                ):
                    return
            sequence = next((queue.head() for queue in self._queues.values() if queue), None)
            if sequence is None:
                return
            if not stage.try_start(sequence, partial(self._for_next, stage, sequence)):
                return

    def service_order(self, sequence: Sequence) -> tuple[Any, ...]:
        """Return class, then arrival."""
        return (sequence.service_class, sequence.arrival, sequence.choice)

    def share(self, decodes: list[Sequence], prefilling: list[Sequence], step: int, now: float) -> StepShares:
        """Apply rules 6 to 8."""
        if not prefilling and decodes[0].service_class == decodes[-1].service_class:  # true of most steps
            return StepShares(decodes, [], [])
        highest = min(s.service_class for s in chain(decodes[:1], prefilling[:1]))  # both lists are sorted by class
        # A sequence that was admitted in time is not overdue for a while, so this list is empty in most steps.
        overdue = [s for s in prefilling if s.is_protected or now >= s.overdue_at]
        punctual = [s for s in prefilling if not (s.is_protected or now >= s.overdue_at)] if overdue else prefilling
        highest_prompts = [s for s in punctual if s.service_class == highest]
        lower_prompts = punctual[len(highest_prompts) :]
        lower_decodes = [s for s in decodes if s.service_class > highest and not s.is_protected]
        num_higher = len(decodes) - len(lower_decodes)
        rows, spare_seconds = len(lower_decodes), math.inf  # all rows join, unless they run beside the highest class
        has_overdue_piggyback = bool(overdue) and overdue[0].service_class > highest
        if (
            (highest_prompts or num_higher)
            and (lower_decodes or lower_prompts or has_overdue_piggyback)
            and not math.isinf(self.config.max_step_slowdown)
        ):
            extra_share = (self.config.max_step_slowdown - 1) * (
                PATIENT_SHARE + (1 - PATIENT_SHARE) * (1.0 if overdue else self._urgency(now))
            )
            spare_seconds = extra_share * self.step_time_model.step_seconds(num_higher)
            rows = self._num_piggyback_rows(len(lower_decodes), spare_seconds)
        paced = sum([s.service_class < BATCH for s in decodes]) if highest < BATCH else len(decodes)
        urgent_seconds = self._urgent_seconds(decodes[:paced], [*overdue, *highest_prompts], num_higher + rows, now)
        budget = self.prompt_tokens(paced, max(0, num_higher + rows - paced), urgent_seconds)
        piggyback_tokens = min(
            (spare_seconds - rows * self.step_time_model.row_seconds) / max(self.step_time_model.token_seconds, 1e-9),
            budget,
        )
        prompts = []
        if overdue:
            max_tokens = budget - sum([s.num_uncomputed for s in highest_prompts])
            if has_overdue_piggyback:
                max_tokens = min(
                    max_tokens, int(piggyback_tokens + (budget - piggyback_tokens) * self._lateness(overdue, now))
                )
            max_tokens = max(1, budget // OVERDUE_SLOT_DIVISOR, max_tokens)
            prompts.append((overdue, max_tokens))
            if has_overdue_piggyback:
                piggyback_tokens -= min(max_tokens, sum([s.num_uncomputed for s in overdue]))
        prompts.append((self._in_turn(highest_prompts), budget))
        if lower_prompts:
            prompts.append((self._in_turn(lower_prompts), max(MIN_PIGGYBACK_TOKENS, int(piggyback_tokens))))
        if rows == len(lower_decodes):
            return StepShares(decodes, [], prompts)
        lower_decodes.sort(key=lambda s: (s.last_piggyback_step, s.service_class))
        for sequence in lower_decodes[:rows]:
            sequence.last_piggyback_step = step
        held_back = {id(s) for s in lower_decodes[rows:]}
        return StepShares([s for s in decodes if id(s) not in held_back], lower_decodes[rows:], prompts)

    def _urgent_seconds(self, paced: list[Sequence], prompts: list[Sequence], rows: int, now: float) -> float:
        """Return the seconds for `prompts` in a step of `rows`, within the targets of the `paced` streams (rule 7)."""
        if not paced:
            return 0.0
        longest, urgency = self._targets.step_seconds(paced, prompts, self.step_time_model.token_seconds, now)
        return urgency * max(0.0, longest - self.step_time_model.step_seconds(rows))

    def _urgency(self, now: float) -> float:
        """Return how close the nearest waiting sequence is to being overdue, from 0 to 1."""
        if self._overdue_queue:
            return 1.0
        # The first alarm belongs to a sequence that waited when the step began, or was preempted since.
        waited = (
            1.0 - (alarms[0][0] - now) / (self._max_wait[service_class] or math.inf)
            for service_class, alarms in self._alarms.items()
            if alarms
        )
        return min(1.0, max((0.0, *waited)))

    def _lateness(self, overdue: list[Sequence], now: float) -> float:
        """Return how far the latest of `overdue` is past its bound: 0 at the bound, 1 at twice the bound."""
        bounds = ((s, self._max_wait[s.service_class]) for s in overdue)
        return max((now - s.overdue_at) / bound if bound else 1.0 for s, bound in bounds)

    def _num_piggyback_rows(self, num_lower: int, spare_seconds: float) -> int:
        """Return how many of `num_lower` rows join a step that may take `spare_seconds` more for them (rule 8)."""
        row_seconds = self.step_time_model.row_seconds
        return max(
            -(-num_lower // PIGGYBACK_SHARE),
            int(min(spare_seconds / row_seconds, num_lower)) if row_seconds else num_lower,
        )

    def _in_turn(self, prefilling: list[Sequence]) -> list[Sequence]:
        """Return the prompts by class, then by their tenants' service, then by `prefill_rank`."""
        if len(prefilling) < 2:
            return prefilling
        token_seconds = self.step_time_model.token_seconds
        return sorted(prefilling, key=lambda s: (s.service_class, s.account.served, *prefill_rank(s, token_seconds)))

    # Preemption ---------------------------------------------------------------------------------------------------

    def preemption_candidates(self, growing: Sequence, running: Iterable[Sequence]) -> list[Sequence]:
        """Return the running sequences that are not of a higher class than `growing` (rule 4)."""
        return [s for s in running if s.service_class >= growing.service_class]

    def victim(self, candidates: Iterable[Sequence], pressure: MemoryPressure) -> Sequence:
        """Return the sequence to preempt by rule 3."""
        candidates = list(candidates)
        lowest = max(s.service_class for s in candidates)
        candidates = [s for s in candidates if s.service_class == lowest]
        if len(candidates) == 1:
            return candidates[0]
        oldest = min(candidates, key=self.service_order)
        least = min(s.account.served for s in candidates)
        wanted = max(1, pressure.pages_needed)

        def order(s: Sequence) -> tuple[Any, ...]:
            seconds = self.preemption_cost(s, pressure)[0]
            return (
                s.is_protected,
                s is oldest,
                s.guaranteed_tokens_left > 0,
                s.account.served <= least + MAX_SERVICE_GAP_TOKENS,
                seconds / max(1, min(wanted, len(s.page_table))),
                -s.arrival,
                -s.choice,
            )

        return min(candidates, key=order)

    def victim_reason(self, victim: Sequence, beneficiary: Sequence | None) -> str:
        """Return the reason by rules 1, 3 and 6."""
        if victim.is_protected:
            return "no other sequence could be paused, although its guaranteed minimum share was not used up"
        if beneficiary is not None and beneficiary.service_class == victim.service_class:
            if beneficiary.is_overdue:
                return "a request of its class had waited past its bound, and pausing this one cost the least"
            return "its tenant had more slots than its share while another tenant of its class had fewer"
        return "of the lowest class that was running, pausing it cost the least"

    # Notifications ------------------------------------------------------------------------------------------------

    def slot_taken(self, sequence: Sequence, fresh_tokens: int, *, is_resumed: bool) -> None:
        """Charge its prompt; give a resumed sequence a minimum share before it is preempted again, if possible."""
        self._queues[sequence.service_class].started(sequence)
        if fresh_tokens:
            sequence.account.charge(PROMPT_WEIGHT * fresh_tokens)
        sequence.guaranteed_tokens_left, sequence.has_guarantee = (self.config.min_share if is_resumed else 0), False

    def tokens_sampled(self, sequences: Iterable[Sequence]) -> None:
        """Charge one token to each sequence's tenant and reduce minimum shares."""
        for sequence in sequences:
            account = sequence.account
            account.served += OUTPUT_WEIGHT / account.weight
            if sequence.guaranteed_tokens_left:
                if sequence.has_guarantee:
                    self._overdue_queue.account(sequence).charge(OUTPUT_WEIGHT)
                sequence.guaranteed_tokens_left -= 1

    def slot_released(self, sequence: Sequence) -> None:
        """End its minimum share."""
        self._queues[sequence.service_class].slot_released(sequence)
        sequence.guaranteed_tokens_left, sequence.has_guarantee = 0, False

    # Internals ----------------------------------------------------------------------------------------------------

    def _has_overdue_slot(self, stage: AdmissionContext) -> bool:
        return sum(s.is_protected for s in stage.running) < self._overdue_slots

    def _must_yield(self, overdue: Sequence, stage: AdmissionContext) -> bool:
        """Return whether higher classes go first: slots are few and the last guarantee has just used one."""
        if not self._steps_to_guarantee:
            return False
        higher = [queue for c, queue in self._queues.items() if c < overdue.service_class]
        return any(higher) or any(s.service_class < overdue.service_class for s in stage.running)

    @staticmethod
    def _for_overdue(stage: AdmissionContext, sequence: Sequence) -> list[Sequence]:
        """Return the preemptible sequences of its own and lower classes, except those with a guarantee (rule 6)."""
        return [s for s in stage.preemptible() if s.service_class >= sequence.service_class and not s.is_protected]

    def _for_next(self, stage: AdmissionContext, sequence: Sequence) -> list[Sequence]:
        """Return the preemptible sequences for a waiting `sequence` (rule 1).

        These are sequences of lower classes. If its tenant is below its share, they include the sequences that other
        tenants of its class run beyond their shares, the latest of each.
        """
        queue = self._queues[sequence.service_class]
        is_below_share = queue.num_tenants > 1 and queue.is_below_share(sequence.account)
        if sequence.service_class == BATCH and not is_below_share:
            return []
        movable = [s for s in stage.preemptible() if s.service_class >= sequence.service_class and not s.is_protected]
        lower = [s for s in movable if s.service_class > sequence.service_class]
        return lower + self._beyond_shares(sequence, movable) if is_below_share else lower

    def _beyond_shares(self, sequence: Sequence, movable: list[Sequence]) -> list[Sequence]:
        """Return the sequences that other tenants of its class run beyond their shares."""
        queue = self._queues[sequence.service_class]
        of_class: dict[Account[Sequence], list[Sequence]] = {}
        for s in movable:
            if s.service_class == sequence.service_class and s.account is not sequence.account:
                of_class.setdefault(s.account, []).append(s)
        beyond: list[Sequence] = []
        for account, of_tenant in of_class.items():
            excess = account.running - math.ceil(queue.share_of(account))
            if excess > 0:
                beyond += of_tenant[-excess:]
        return beyond
