"""Carousel's own scheduling policy. Its rules, of which `step_sharing` has those about the contents of a step (6 to 8):

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

from msgspec.structs import replace

from engine.config import EngineConfig
from engine.scheduling.account import Account
from engine.scheduling.admission import Admission, AdmissionPlan, AdmissionView, Shortage
from engine.scheduling.carousel_state import CarouselState, state_of
from engine.scheduling.costs import Costs
from engine.scheduling.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT, FairQueue
from engine.scheduling.policies.step_sharing import BATCH, OVERDUE_SLOT_DIVISOR, StepSharing
from engine.scheduling.policy import MemoryPressure
from engine.scheduling.sequence import Sequence, State
from engine.types import ServiceClass, WaitReason

MAX_SERVICE_GAP_TOKENS = 1024.0  # weighted tokens
MIN_STALE_ALARMS = 64  # stale alarms of a class below which its heap is not rebuilt


def _order(sequence: Sequence) -> tuple[Any, ...]:
    deadline = sequence.request.deadline
    return (
        sequence.request.priority,
        math.inf if deadline is None else deadline,
        sequence.arrival,
        sequence.choice,
    )


def _is_current(alarm: tuple[float, int, Sequence], service_class: ServiceClass) -> bool:
    """Return whether a sequence waits in a class, and becomes overdue at the time of an alarm."""
    due, _, sequence = alarm
    is_waiting = sequence.state in (State.WAITING, State.PREEMPTED) and sequence.service_class is service_class
    return is_waiting and not state_of(sequence).is_overdue and due == state_of(sequence).overdue_at


def _overdue_order(sequence: Sequence) -> tuple[Any, ...]:
    return (state_of(sequence).overdue_at, sequence.arrival, sequence.choice)


class Carousel(StepSharing):
    """Policy with a fair queue for each class, and one for overdue sequences."""

    name = "carousel"

    def __init__(self, config: EngineConfig, costs: Costs) -> None:
        super().__init__(config, costs)
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
        self._overdue_queue = FairQueue(_overdue_order, config.max_num_seqs)
        # When each sequence becomes overdue, earliest first. Entries of sequences that left are dropped at the top.
        self._alarms: dict[ServiceClass, list[tuple[float, int, Sequence]]] = {c: [] for c in ServiceClass}
        self._serial = count()

    # Queue --------------------------------------------------------------------------------------------------------

    def push(self, sequence: Sequence) -> None:
        """Queue `sequence` in its class; its clock runs from `waiting_since`."""
        account = self._queues[sequence.service_class].push(sequence)
        if sequence.policy_state is None:
            sequence.policy_state = CarouselState(account)
        state = state_of(sequence)
        state.account = account
        state.overdue_at = sequence.waiting_since + self.max_wait[sequence.service_class]
        if state.overdue_at < math.inf:
            heapq.heappush(self._alarms[sequence.service_class], (state.overdue_at, next(self._serial), sequence))
            self._drop_stale(sequence.service_class)

    def remove(self, sequence: Sequence) -> None:
        """Remove `sequence` from its class and from the overdue queue."""
        state = state_of(sequence)
        if state.is_overdue:
            self._overdue_queue.remove(sequence)
            state.is_overdue = False
        self._queues[sequence.service_class].remove(sequence)

    def in_order(self) -> Iterator[Sequence]:
        """Return the overdue sequences, then class by class."""
        by_class = (
            s for queue in self._queues.values() if queue for s in queue.in_order() if not state_of(s).is_overdue
        )
        return chain(self._overdue_queue.in_order(), by_class) if self._overdue_queue else by_class

    def num_ahead(self, sequence: Sequence) -> int:
        """Return the number of overdue sequences, which go before the first one of a class."""
        return 0 if state_of(sequence).is_overdue else len(self._overdue_queue)

    def wait_reason(self, sequence: Sequence) -> WaitReason:
        """Return whether a later arrival of the same class goes first, and the reason (rule 2)."""
        first = self._queues[sequence.service_class].head()
        if first is None or first.arrival <= sequence.arrival:
            return WaitReason.ORDER
        account, first_account = state_of(sequence).account, state_of(first).account
        if first_account is account:
            by_priority = first.request.priority < sequence.request.priority
            return WaitReason.ORDER if by_priority or first.request.deadline is None else WaitReason.DEADLINE
        return WaitReason.FAIRNESS if first_account.served <= account.served else WaitReason.DEADLINE

    # A step -------------------------------------------------------------------------------------------------------

    def begin_step(self, now: float) -> None:
        """Move sequences that have waited past their class's bound into the overdue queue (rule 6)."""
        self._steps_to_guarantee = max(0, self._steps_to_guarantee - 1)
        for service_class, alarms in self._alarms.items():
            while alarms:
                due, _, sequence = alarms[0]
                if _is_current(alarms[0], service_class):
                    if due > now:
                        break
                    state_of(sequence).is_overdue = True
                    self._overdue_queue.push(sequence)
                heapq.heappop(alarms)

    def plan_admission(self, view: AdmissionView, now: float) -> AdmissionPlan:
        """Plan for the first overdue sequence, or for the next one by class and tenant.

        No sequence overtakes one that does not fit: resources that become free go to it. Only an overdue sequence lets
        higher classes pass, and not for ever (rule 6).
        """
        shortages: tuple[Shortage, ...] = ()
        overdue = self._first_overdue(view)
        if overdue is not None:
            plan = self.plan_for(view, overdue, partial(self._for_overdue, view, overdue), is_guaranteed=True)
            if plan.admission is not None or (plan.is_short_of_pages and self._blocks_others(overdue, now)):
                return plan
            shortages = plan.shortages
        sequence = next((queue.head() for queue in self._queues.values() if queue), None)
        if sequence is None:
            return AdmissionPlan(shortages)
        plan = self.plan_for(view, sequence, partial(self._for_next, view, sequence))
        return replace(plan, shortages=shortages + plan.shortages) if shortages else plan

    def service_order(self, sequence: Sequence) -> tuple[Any, ...]:
        """Return class, then arrival."""
        return (sequence.service_class, sequence.arrival, sequence.choice)

    def _urgency(self, now: float) -> float:
        """Return how close the nearest waiting sequence is to being overdue, from 0 to 1."""
        if self._overdue_queue:
            return 1.0
        # The first alarm belongs to a sequence that waited when the step began, or was preempted since.
        waited = (
            1.0 - (alarms[0][0] - now) / (self.max_wait[service_class] or math.inf)
            for service_class, alarms in self._alarms.items()
            if alarms
        )
        return min(1.0, max((0.0, *waited)))

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
        least = min(state_of(s).account.served for s in candidates)
        wanted = max(1, pressure.pages_needed)

        def order(s: Sequence) -> tuple[Any, ...]:
            state = state_of(s)
            seconds = self.preemption_cost(s, pressure)[0]
            return (
                state.is_protected,
                s is oldest,
                state.guaranteed_tokens_left > 0,
                state.account.served <= least + MAX_SERVICE_GAP_TOKENS,
                seconds / max(1, min(wanted, len(s.page_table))),
                -s.arrival,
                -s.choice,
            )

        return min(candidates, key=order)

    def victim_reason(self, victim: Sequence, beneficiary: Sequence | None) -> str:
        """Return the reason by rules 1, 3 and 6."""
        if state_of(victim).is_protected:
            return "no other sequence could be paused, although its guaranteed minimum share was not used up"
        if beneficiary is not None and beneficiary.service_class == victim.service_class:
            if state_of(beneficiary).is_overdue:
                return "a request of its class had waited past its bound, and pausing this one cost the least"
            return "its tenant had more slots than its share while another tenant of its class had fewer"
        return "of the lowest class that was running, pausing it cost the least"

    # Notifications ------------------------------------------------------------------------------------------------

    def slot_taken(self, admission: Admission, charged_tokens: float, *, is_resumed: bool) -> None:
        """Charge its prompt; give a resumed sequence a minimum share before it is preempted again, if possible.

        An overdue sequence that took its reserved slot is guaranteed that share.
        """
        state = state_of(admission.sequence)
        self._queues[admission.sequence.service_class].slot_taken(state.account)
        if charged_tokens:
            state.account.charge(PROMPT_WEIGHT * charged_tokens)
        state.has_guarantee = admission.is_guaranteed
        state.guaranteed_tokens_left = self.config.min_share if is_resumed or admission.is_guaranteed else 0
        if admission.is_guaranteed:
            self._steps_to_guarantee = self._guarantee_steps

    def tokens_sampled(self, sequences: Iterable[Sequence]) -> None:
        """Charge one token to each sequence's tenant and reduce minimum shares."""
        for sequence in sequences:
            state: CarouselState = sequence.policy_state
            account = state.account
            account.served += OUTPUT_WEIGHT / account.weight
            if state.guaranteed_tokens_left:
                if state.has_guarantee:
                    self._overdue_queue.account(sequence).charge(OUTPUT_WEIGHT)
                state.guaranteed_tokens_left -= 1

    def host_time_spent(self, sequence: Sequence, seconds: float) -> None:
        """Charge the tokens that a step of one row would have generated in that time. A sequence that was never queued
        has no account yet.
        """
        if sequence.policy_state is not None and self.step_time_model.single_row_seconds:
            tokens = seconds / self.step_time_model.single_row_seconds
            state_of(sequence).account.charge(OUTPUT_WEIGHT * tokens)

    def class_changed(self, sequence: Sequence) -> None:
        """Charge further tokens to the tenant's account in the new class."""
        state_of(sequence).account = self._queues[sequence.service_class].join_running(sequence)

    def slot_released(self, sequence: Sequence) -> None:
        """End its minimum share."""
        state = state_of(sequence)
        self._queues[sequence.service_class].slot_released(state.account)
        state.guaranteed_tokens_left, state.has_guarantee = 0, False

    # Internals ----------------------------------------------------------------------------------------------------

    def _drop_stale(self, service_class: ServiceClass) -> None:
        """Drop stale alarms once they are the majority: a client can pause and resume a request again and again."""
        alarms = self._alarms[service_class]
        if len(alarms) > MIN_STALE_ALARMS + 2 * len(self._queues[service_class]):
            current = {alarm[2]: alarm for alarm in alarms if _is_current(alarm, service_class)}
            self._alarms[service_class] = list(current.values())
            heapq.heapify(self._alarms[service_class])

    def _first_overdue(self, view: AdmissionView) -> Sequence | None:
        """Return the first overdue sequence if a reserved slot is left for it and it need not yield."""
        if not self._overdue_queue or sum(s.policy_state.is_protected for s in view.running) >= self._overdue_slots:
            return None
        overdue = self._overdue_queue.head()
        return None if overdue is None or self._must_yield(overdue, view) else overdue

    def _blocks_others(self, overdue: Sequence, now: float) -> bool:
        """Return whether `overdue` has waited twice its bound, so that no sequence passes it for its pages."""
        return now >= state_of(overdue).overdue_at + self.max_wait[overdue.service_class]

    def _must_yield(self, overdue: Sequence, view: AdmissionView) -> bool:
        """Return whether higher classes go first: slots are few and the last guarantee has just used one."""
        if not self._steps_to_guarantee:
            return False
        higher = [queue for c, queue in self._queues.items() if c < overdue.service_class]
        return any(higher) or any(s.service_class < overdue.service_class for s in view.running)

    @staticmethod
    def _for_overdue(view: AdmissionView, sequence: Sequence) -> list[Sequence]:
        """Return the preemptible sequences of its own and lower classes, except those with a guarantee (rule 6)."""
        return [
            s for s in view.preemptible() if s.service_class >= sequence.service_class and not state_of(s).is_protected
        ]

    def _for_next(self, view: AdmissionView, sequence: Sequence) -> list[Sequence]:
        """Return the preemptible sequences for a waiting `sequence` (rule 1).

        These are sequences of lower classes. If its tenant is below its share, they include the sequences that other
        tenants of its class run beyond their shares, the latest of each.
        """
        queue = self._queues[sequence.service_class]
        is_below_share = queue.num_tenants > 1 and queue.is_below_share(state_of(sequence).account)
        if sequence.service_class == BATCH and not is_below_share:
            return []
        preemptible = [
            s for s in view.preemptible() if s.service_class >= sequence.service_class and not state_of(s).is_protected
        ]
        lower = [s for s in preemptible if s.service_class > sequence.service_class]
        return lower + self._beyond_shares(sequence, preemptible) if is_below_share else lower

    def _beyond_shares(self, sequence: Sequence, preemptible: list[Sequence]) -> list[Sequence]:
        """Return the sequences that other tenants of its class run beyond their shares."""
        queue = self._queues[sequence.service_class]
        of_class: dict[Account, list[Sequence]] = {}
        for s in preemptible:
            account = state_of(s).account
            if s.service_class == sequence.service_class and account is not state_of(sequence).account:
                of_class.setdefault(account, []).append(s)
        beyond: list[Sequence] = []
        for account, of_tenant in of_class.items():
            excess = account.running - math.ceil(queue.share_of(account))
            if excess > 0:
                beyond += of_tenant[-excess:]
        return beyond
