"""Ours. The rules, stated:

1. A waiting sequence may pause running ones of a lower class. Of its own class it may pause those of another tenant
   that has more slots than its share, as long as its own tenant has less: nobody waits for the end of somebody else's
   flood. A share is the slots by weight among the tenants of the class that run or wait.
2. Inside a class tenants take turns by the service they had, whoever lacks slots first within a slack
   (`engine.scheduling.fairness`); a tenant's own go by priority, then deadline, then arrival.
3. The victim is of the lowest class. In it the oldest is spared, so that memory pressure cannot livelock; then whoever
   came back from a pause and has not run its minimum share; then, of tenants that had `UNEVEN` more service than
   another that runs, theirs go first; then whoever's pause costs the machine the least time for each page that is
   wanted; then the latest.
4. When memory runs short while a running sequence grows, the same order picks the victim among all that run and are
   not of a higher class; it may be the growing one itself.
5. A victim's pages are copied to host memory, or dropped with whatever the prefix cache keeps of them: what costs less
   time (`Policy.pause_cost`).
6. Whoever of a lower class waited longer than its bound is overdue. Overdue sequences go first, tenants in turn, but at
   most one in `OVERDUE_SHARE` slots serves them at a time, and where there are fewer slots, one slot for that share of
   the steps, as long as higher classes ask: a flood of old batch jobs cannot shut people out. One may pause running
   ones of its own class too, and has a claim on its slot for `min_share` tokens. When its turn has come and the pages
   it lacks are held by higher classes it lets people pass; after twice its bound nobody passes it any more. Its prompt
   gets one in `OVERDUE_SHARE` tokens of a step's budget before all others, and before the rest of its class what others
   leave: beside higher classes as far as it may ride there (rule 8), and more the later it is, up to all of it at twice
   its bound. The clock of a paused sequence goes on unless it had generated its share: let in and thrown out again it
   had no service.
7. A step takes no more tokens than are read in `step_seconds`, unless told otherwise: nobody's stream halts for longer
   because somebody else's prompt is long (Sarathi-Serve's stall-free schedule, Agrawal et al., OSDI'24). Nor does it
   take more than can be recorded with the rows that decode, where steps are recorded. Urgent prompts get longer steps,
   up to the ITL targets of the streams in it, as long as all of these keep their pace
   (`engine.scheduling.itl_targets`). The prompts of a class share its tokens by their tenants' turns; a tenant's
   prompts are read in the order of priority, deadline and shortest remaining prefill, with ageing.
8. While anybody of a higher class is served, those of lower ones ride along as far as they do not make a step too
   long, by what rows were seen to cost (`engine.scheduling.pace`): `config.stretch` times as long as for the people who
   decode in it if somebody is overdue or about to be, `PATIENT` of the way there if nobody has waited; and by no
   more where somebody's prompt is read in it. At least one in `RIDING_SHARE` does, in turn, and so do a few tokens of
   their prompts. Where a row costs nothing, all do; with an infinite stretch all of all.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, count
from typing import Any

from engine.config import EngineConfig
from engine.scheduling.costs import Costs
from engine.scheduling.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT, Account, FairLine
from engine.scheduling.itl_targets import ItlTargets, prefill_rank
from engine.scheduling.policy import Policy, Pressure, Shares, Stage
from engine.scheduling.sequence import Sequence, State
from engine.types import Cause, ServiceClass

BATCH = ServiceClass.BATCH
OVERDUE_SHARE = 8
UNEVEN = 1024.0  # weighted tokens
RIDING_SHARE = 16  # one in so many rows of lower classes rides whatever it costs
PATIENT = 0.25  # of the stretch that there is for those who are about to be overdue
LEAST_RIDING = 8  # prompt tokens of theirs in each step


def _order(sequence: Sequence) -> tuple[Any, ...]:
    deadline = sequence.request.deadline
    return (
        sequence.request.priority,
        math.inf if deadline is None else deadline,
        sequence.arrival,
        sequence.choice,
    )


class Carousel(Policy):
    """A line for each class, and one for those who waited too long."""

    name = "carousel"

    def __init__(self, config: EngineConfig, costs: Costs) -> None:
        super().__init__(config, costs)
        self._max_wait = {
            ServiceClass.INTERACTIVE: math.inf,
            ServiceClass.STANDARD: config.max_wait_standard,
            ServiceClass.BATCH: config.max_wait_batch,
        }
        self._overdue_slots = max(1, config.max_num_seqs // OVERDUE_SHARE)
        # With fewer slots than that a claim takes more than its share of them, and is the last one for so many steps.
        few = config.max_num_seqs < OVERDUE_SHARE
        self._claim_steps = math.ceil(config.min_share * OVERDUE_SHARE / config.max_num_seqs) if few else 0
        self._owed = 0  # steps until the next claim, as long as higher classes ask
        self._lines = {c: FairLine(_order, config.max_num_seqs) for c in ServiceClass}
        # Whoever is in it keeps its place in its class, so that it can only help.
        self._overdue = FairLine(lambda s: (s.due, s.arrival, s.choice), config.max_num_seqs)
        # When each becomes overdue, soonest first. Entries of those who left are dropped when they come to the top.
        self._alarms: dict[ServiceClass, list[tuple[float, int, Sequence]]] = {c: [] for c in ServiceClass}
        self._serial = count()
        self._targets = ItlTargets(config)

    # Who waits ----------------------------------------------------------------------------------------------------

    def push(self, sequence: Sequence) -> None:
        """In its class; its clock runs from `waiting_since`."""
        sequence.account = self._lines[sequence.service_class].push(sequence)
        sequence.due = sequence.waiting_since + self._max_wait[sequence.service_class]
        if sequence.due < math.inf:
            heapq.heappush(self._alarms[sequence.service_class], (sequence.due, next(self._serial), sequence))

    def remove(self, sequence: Sequence) -> None:
        """From its class, and from those who are overdue."""
        if sequence.is_overdue:
            self._overdue.remove(sequence)
            sequence.is_overdue = False
        self._lines[sequence.service_class].remove(sequence)

    def in_order(self) -> Iterator[Sequence]:
        """The overdue, then class by class."""
        by_class = (s for line in self._lines.values() if line for s in line.in_order() if not s.is_overdue)
        return chain(self._overdue.in_order(), by_class) if self._overdue else by_class

    def num_ahead(self, sequence: Sequence) -> int:
        """The overdue go before the first of a class."""
        return 0 if sequence.is_overdue else len(self._overdue)

    def why_waits(self, sequence: Sequence) -> Cause:
        """Rule 2: whether somebody who came later in its class goes first, and for what."""
        first = self._lines[sequence.service_class].head()
        if first is None or first.arrival <= sequence.arrival:
            return Cause.ORDER
        if first.account is sequence.account:
            by_priority = first.request.priority < sequence.request.priority
            return Cause.ORDER if by_priority or first.request.deadline is None else Cause.DEADLINE
        return Cause.FAIRNESS if first.account.served <= sequence.account.served else Cause.DEADLINE

    # A step -------------------------------------------------------------------------------------------------------

    def begin_step(self, now: float) -> None:
        """Rule 6: let whoever has waited past its class's bound into the overdue line."""
        self._owed = max(0, self._owed - 1)
        for alarms in self._alarms.values():
            while alarms:
                due, _, sequence = alarms[0]
                waits = sequence.state in (State.WAITING, State.PAUSED)
                if waits and not sequence.is_overdue and due == sequence.due:
                    if due > now:
                        break
                    sequence.is_overdue = True
                    self._overdue.push(sequence)
                heapq.heappop(alarms)

    def admit(self, stage: Stage, now: float) -> None:
        """Next first, until one does not fit. Nobody overtakes the one who does not fit: whatever becomes free is its.
        Only an overdue one lets higher classes pass, and that not for ever (rule 6)."""
        while True:
            overdue = self._overdue.head() if self._overdue and self._has_overdue_slot(stage) else None
            if overdue is not None and not self._owes(overdue, stage):
                if stage.try_start(overdue, partial(self._for_overdue, stage, overdue)):
                    overdue.share_left, overdue.has_claim = self.config.min_share, True
                    self._owed = self._claim_steps
                    continue
                if overdue.cause is Cause.PAGES and now >= overdue.due + self._max_wait[overdue.service_class]:
                    return
            sequence = next((line.head() for line in self._lines.values() if line), None)
            if sequence is None:
                return
            if not stage.try_start(sequence, partial(self._for_next, stage, sequence)):
                return

    def service_order(self, sequence: Sequence) -> tuple[Any, ...]:
        """By class, then arrival."""
        return (sequence.service_class, sequence.arrival, sequence.choice)

    def share(self, decodes: list[Sequence], prefilling: list[Sequence], step: int, now: float) -> Shares:
        """Rules 6 to 8."""
        if not prefilling and decodes[0].service_class == decodes[-1].service_class:  # as most steps are
            return Shares(decodes, [], [])
        highest = min(s.service_class for s in chain(decodes[:1], prefilling[:1]))  # they come by class
        # Who was let in in time is not overdue for a while: most steps have nobody in this list.
        overdue = [s for s in prefilling if s.is_protected or now >= s.due]
        others = [s for s in prefilling if not (s.is_protected or now >= s.due)] if overdue else prefilling
        first = [s for s in others if s.service_class == highest]
        after = others[len(first) :]
        lower = [s for s in decodes if s.service_class > highest and not s.is_protected]
        higher = len(decodes) - len(lower)
        rows, spare = len(lower), math.inf  # all ride, but where they are beside somebody of the highest class
        rides = bool(overdue) and overdue[0].service_class > highest
        if (first or higher) and (lower or after or rides) and not math.isinf(self.config.stretch):
            stretch = (self.config.stretch - 1) * (PATIENT + (1 - PATIENT) * (1.0 if overdue else self._urgency(now)))
            spare = stretch * self.pace.step_seconds(higher)
            rows = self._riding_rows(len(lower), spare)
        paced = sum([s.service_class < BATCH for s in decodes]) if highest < BATCH else len(decodes)
        extra = self._urgent_seconds(decodes[:paced], [*overdue, *first], higher + rows, now)
        budget = self.prompt_tokens(paced, max(0, higher + rows - paced), extra)
        riding = min((spare - rows * self.pace.row_seconds) / max(self.pace.token_seconds, 1e-9), budget)
        prompts = []
        if overdue:
            most = budget - sum([s.num_uncomputed for s in first])
            if rides:
                most = min(most, int(riding + (budget - riding) * self._lateness(overdue, now)))
            most = max(1, budget // OVERDUE_SHARE, most)
            prompts.append((overdue, most))
            if rides:
                riding -= min(most, sum([s.num_uncomputed for s in overdue]))
        prompts.append((self._in_turn(first), budget))
        if after:
            prompts.append((self._in_turn(after), max(LEAST_RIDING, int(riding))))
        if rows == len(lower):
            return Shares(decodes, [], prompts)
        lower.sort(key=lambda s: (s.rode, s.service_class))
        for sequence in lower[:rows]:
            sequence.rode = step
        waits = {id(s) for s in lower[rows:]}
        return Shares([s for s in decodes if id(s) not in waits], lower[rows:], prompts)

    def _urgent_seconds(self, paced: list[Sequence], prompts: list[Sequence], rows: int, now: float) -> float:
        """Rule 7: seconds for `prompts` in a step of `rows`, within the targets of the `paced` streams."""
        if not paced:
            return 0.0
        longest, urgency = self._targets.step_seconds(paced, prompts, self.pace.token_seconds, now)
        return urgency * max(0.0, longest - self.pace.step_seconds(rows))

    def _urgency(self, now: float) -> float:
        """How near to being overdue the nearest is who waits, from 0 to 1."""
        if self._overdue:
            return 1.0
        # The first alarm is of one who waited when the step began, or has been paused since.
        waited = (
            1.0 - (alarms[0][0] - now) / (self._max_wait[service_class] or math.inf)
            for service_class, alarms in self._alarms.items()
            if alarms
        )
        return min(1.0, max((0.0, *waited)))

    def _lateness(self, overdue: list[Sequence], now: float) -> float:
        """How far past its bound whoever is furthest has waited: 0 there, 1 at twice the bound."""
        bounds = ((s, self._max_wait[s.service_class]) for s in overdue)
        return max((now - s.due) / bound if bound else 1.0 for s, bound in bounds)

    def _riding_rows(self, lower: int, spare: float) -> int:
        """Rule 8: how many of the `lower` rows ride in a step that may take `spare` seconds more for them."""
        row = self.pace.row_seconds
        return max(-(-lower // RIDING_SHARE), int(min(spare / row, lower)) if row else lower)

    def _in_turn(self, prefilling: list[Sequence]) -> list[Sequence]:
        """Classes in order, in each the tenants by service, and a tenant's prompts by `prefill_rank`."""
        if len(prefilling) < 2:
            return prefilling
        token_seconds = self.pace.token_seconds
        return sorted(prefilling, key=lambda s: (s.service_class, s.account.served, *prefill_rank(s, token_seconds)))

    # Who makes way ------------------------------------------------------------------------------------------------

    def may_make_way(self, growing: Sequence, running: Iterable[Sequence]) -> list[Sequence]:
        """Rule 4."""
        return [s for s in running if s.service_class >= growing.service_class]

    def victim(self, candidates: Iterable[Sequence], pressure: Pressure) -> Sequence:
        """Rule 3."""
        candidates = list(candidates)
        lowest = max(s.service_class for s in candidates)
        candidates = [s for s in candidates if s.service_class == lowest]
        if len(candidates) == 1:
            return candidates[0]
        oldest = min(candidates, key=self.service_order)
        least = min(s.account.served for s in candidates)
        wanted = max(1, pressure.lacking)

        def order(s: Sequence) -> tuple[Any, ...]:
            seconds = self.pause_cost(s, pressure)[0]
            return (
                s.is_protected,
                s is oldest,
                s.share_left > 0,
                s.account.served <= least + UNEVEN,
                seconds / max(1, min(wanted, len(s.page_table))),
                -s.arrival,
                -s.choice,
            )

        return min(candidates, key=order)

    def why_victim(self, victim: Sequence, made_for: Sequence | None) -> str:
        """Rules 1, 3 and 6."""
        if victim.is_protected:
            return "nobody else could be paused, though its claim to a minimum share was not over"
        if made_for is not None and made_for.service_class == victim.service_class:
            if made_for.is_overdue:
                return "one of its class had waited past its bound, and pausing this one cost the least"
            return "its tenant had more slots than its share while another of its class had less"
        return "of the lowest class that ran, pausing it cost the least"

    # What was done ------------------------------------------------------------------------------------------------

    def started(self, sequence: Sequence, fresh_tokens: int, *, is_resumed: bool) -> None:
        """Its prompt is charged; who comes back has a minimum share before it is paused again, if another can be."""
        self._lines[sequence.service_class].started(sequence)
        if fresh_tokens:
            sequence.account.charge(PROMPT_WEIGHT * fresh_tokens)
        sequence.share_left, sequence.has_claim = (self.config.min_share if is_resumed else 0), False

    def served(self, sequences: Iterable[Sequence]) -> None:
        """A token each, charged; the share of who has one runs down."""
        for sequence in sequences:
            account = sequence.account
            account.served += OUTPUT_WEIGHT / account.weight
            if sequence.share_left:
                if sequence.has_claim:
                    self._overdue.account(sequence).charge(OUTPUT_WEIGHT)
                sequence.share_left -= 1

    def vacated(self, sequence: Sequence) -> None:
        """Its minimum share is over."""
        self._lines[sequence.service_class].vacated(sequence)
        sequence.share_left, sequence.has_claim = 0, False

    # Inside -------------------------------------------------------------------------------------------------------

    def _has_overdue_slot(self, stage: Stage) -> bool:
        return sum(s.is_protected for s in stage.running) < self._overdue_slots

    def _owes(self, overdue: Sequence, stage: Stage) -> bool:
        """Whether those of higher classes come first, as there are few slots and the last claim had one of them."""
        if not self._owed:
            return False
        higher = [line for c, line in self._lines.items() if c < overdue.service_class]
        return any(higher) or any(s.service_class < overdue.service_class for s in stage.running)

    @staticmethod
    def _for_overdue(stage: Stage, sequence: Sequence) -> list[Sequence]:
        """Rule 6: of its own class too, but not who has a claim."""
        return [s for s in stage.movable() if s.service_class >= sequence.service_class and not s.is_protected]

    def _for_next(self, stage: Stage, sequence: Sequence) -> list[Sequence]:
        """Rule 1: those of lower classes; and what tenants of its class run beyond their share, the latest of each, for
        one that has less."""
        line = self._lines[sequence.service_class]
        lacks_slots = line.num_tenants > 1 and line.is_below_share(sequence.account)
        if sequence.service_class == BATCH and not lacks_slots:
            return []
        movable = [s for s in stage.movable() if s.service_class >= sequence.service_class and not s.is_protected]
        lower = [s for s in movable if s.service_class > sequence.service_class]
        return lower + self._beyond_their_share(sequence, movable) if lacks_slots else lower

    def _beyond_their_share(self, sequence: Sequence, movable: list[Sequence]) -> list[Sequence]:
        """What other tenants of its class run beyond their share."""
        line = self._lines[sequence.service_class]
        of_class: dict[Account, list[Sequence]] = {}
        for s in movable:
            if s.service_class == sequence.service_class and s.account is not sequence.account:
                of_class.setdefault(s.account, []).append(s)
        beyond: list[Sequence] = []
        for account, theirs in of_class.items():
            more = account.running - math.ceil(line.share_of(account))
            if more > 0:
                beyond += theirs[-more:]
        return beyond
