"""Scheduler: decides each step, and takes in what the step yielded.

State changes in `schedule` and `commit` only, and between steps in `submit`, `abort` and `pause`. It never calls back;
what others must know is returned by `take_events`. Iteration-level scheduling follows Orca (Yu et al., OSDI'22),
paging vLLM (Kwon et al., SOSP'23).
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from engine.config import EngineConfig
from engine.scheduling.batch import Batch, Chunk, Join, Outcome
from engine.scheduling.budget import share_tokens
from engine.scheduling.moves import Moves
from engine.scheduling.pages import HostPool, PagePool
from engine.scheduling.policy import Policy
from engine.scheduling.queue import WaitQueue
from engine.scheduling.sequence import Sequence, State
from engine.types import (
    Cause,
    Counters,
    EndEvent,
    Event,
    FinishReason,
    Load,
    Mechanism,
    PageCounts,
    Phase,
    Request,
    ServiceClass,
    StatusEvent,
    TokenEvent,
)

POSITIONS_TOLD = 32  # how many of those who wait are told their place when it changes


@dataclass(frozen=True, slots=True)
class Flight:
    """A step between its decision and its outcome."""

    noted: list[tuple[Sequence, int]]  # who fills a page or ends a chunk, and how many of its tokens are computed then
    sampled: list[Sequence]  # in the order of `Batch.sampled`
    num_tokens: int
    turning: list[Sequence]  # who decodes from then on, or has its pages back


def _service_order(sequence: Sequence) -> tuple[int, int, int]:
    return (sequence.service_class, sequence.arrival, sequence.choice)


class Scheduler:
    """Slots, pages and the queue of one engine. Tokens are integers to it; time is what `now` says (seconds)."""

    def __init__(self, config: EngineConfig, policy: Policy, *, num_pages: int, host_pages: int, max_len: int) -> None:
        self.config = config
        self.policy = policy
        self.max_len = max_len
        self.pool = PagePool(num_pages)
        self.host = HostPool(host_pages)
        self.queue = WaitQueue(policy.max_wait)
        self.running: list[Sequence] = []  # by class, then arrival: who is served first
        self.requests: dict[str, list[Sequence]] = {}  # the unfinished choices of each request
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self._slots: list[Sequence | None] = [None] * config.max_num_seqs
        self._outgrown: list[Sequence] = []  # whose next token needs a page that they do not have
        self._arrived: list[Sequence] = []  # since the last step was decided
        self._swapped_in: list[Sequence] = []  # in the step that is being decided
        self._moves = Moves()
        self._flights: deque[Flight] = deque()  # steps decided and not committed, oldest first
        self._events: list[Event] = []
        self._counts: Counter[str] = Counter()
        self._arrivals = 0

    # Between steps ------------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        """Let `request` wait. The engine has checked that it fits context and pool, and that its id is new."""
        size = self.config.page_size
        lead, *siblings = (
            Sequence(request, choice, self._arrivals, now, size, self.max_len) for choice in range(request.n)
        )
        self._arrivals += 1
        self.requests[request.id] = [lead, *siblings]
        lead.siblings = siblings
        for sibling in siblings:
            sibling.state = State.HELD_BACK
            sibling.lead = lead
        self.queue.push(lead)
        self._arrived.append(lead)

    def abort(self, request_id: str, now: float, choice: int | None = None) -> None:
        """End a request, or one of its choices, wherever it is. Unknown and finished ones are ignored: an abort may
        cross the last token on its way."""
        for sequence in list(self.requests.get(request_id, ())):
            if choice is None or sequence.choice == choice:
                self._tell(sequence, Phase.ENDED, now)
                self._events.append(EndEvent(request_id, sequence.choice, FinishReason.ABORT))
                self._finish(sequence, now)

    def pause(
        self, sequence: Sequence, now: float, *, by: ServiceClass | None = None, mechanism: Mechanism | None = None
    ) -> None:
        """Take slot and pages from a running sequence; it waits to go on. Without `mechanism` the policy chooses."""
        assert sequence.state is State.RUNNING and not self._moves.has_joined(sequence.slot), sequence
        mechanism = mechanism or self.policy.mechanism(sequence, self.host.available)
        why = self.policy.why_victim(sequence)
        if mechanism is Mechanism.SWAP:
            written = sequence.page_table[: -(-sequence.num_computed // self.config.page_size)]
            sequence.host_pages = self.host.allocate(len(written))
            self._moves.swap_out(written, sequence.host_pages)
            self._counts["swaps"] += 1
        else:
            sequence.num_computed = 0
            self._counts["recomputes"] += 1
        self._vacate(sequence)
        sequence.state = State.PAUSED
        sequence.paused_by, sequence.mechanism, sequence.paused_why = by, mechanism, why
        sequence.num_published = sequence.share_left = sequence.told_position = 0
        if sequence.num_generated - sequence.waiting_from >= self.policy.min_share:
            sequence.waiting_since, sequence.waiting_from = now, sequence.num_generated
        self.queue.push(sequence)
        self._tell(sequence, Phase.PAUSED, now, Cause.ORDER)

    # A step -------------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> Batch:
        """Decide the next step: who grows, who is paused, who joins, and how many tokens of each are computed. The
        step before may still be under way: what it computes is taken as computed."""
        self.host.release(self._moves.spent_host_pages)  # they were read by a step before, whatever is next written
        self._moves.spent_host_pages = []
        self.queue.promote_overdue(now)
        was_idle = not self.running
        self._grow_running(now)
        if self.config.batching == "continuous" or was_idle:
            self._admit(now)
        for sequence in self._arrived:
            if sequence.state is State.WAITING and sequence.cause is Cause.STEP:
                self._tell(sequence, Phase.QUEUED, now, Cause.ORDER)
        self._arrived = []
        decodes, chunks, passed_over = share_tokens(self.running, self.config, self.policy, now)
        for sequence in passed_over:
            if sequence.cause is not Cause.BUDGET:
                self._tell(sequence, Phase.PREFILL, now, Cause.BUDGET)
        flight = self._depart(decodes, chunks, now)
        self._counts["steps"] += 1
        batch = self._moves.build(self._counts["steps"], [s.slot for s in decodes if s.slot is not None], chunks)
        if not batch.is_empty:
            self._flights.append(flight)
        return batch

    def commit(self, outcome: Outcome, now: float) -> None:
        """Take in what the oldest step under way yielded: tokens are appended, full pages published, finished
        sequences leave. Who has left since, or was paused, is not in the way."""
        flight = self._flights.popleft()
        for sequence, computed in flight.noted:
            self._publish(sequence, computed, now)
        for sequence in flight.turning:
            if sequence.state is State.RUNNING and sequence.cause is None:
                self._tell(sequence, Phase.PREFILL if sequence.num_uncomputed > 1 else Phase.DECODE, now)
        # What runs for every sequence in every step is written out: benchmarks/scheduler_cost.py counts it.
        events, finished = self._events, State.FINISHED
        for sequence, sampled in zip(flight.sampled, outcome.sampled, strict=True):
            if sequence.state is finished:
                continue
            token_id = sampled.token_id
            sequence.tokens.append(token_id)
            if sequence.share_left:
                sequence.share_left -= 1
            finish = sequence.finish_reason(token_id)
            if finish is not None:
                self._tell(sequence, Phase.ENDED, now)
            events.append(
                TokenEvent(sequence.request.id, sequence.choice, token_id, finish, sampled.logprob, sampled.top)
            )
            if finish is not None:
                self._finish(sequence, now)
        self._counts["computed_tokens"] += flight.num_tokens
        self._counts["generated_tokens"] += len(outcome.sampled)

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def tell_positions(self, now: float) -> None:
        """Tell the first few who wait their place, where it changed since they last heard. The cost does not grow with
        the queue; whoever is further back than that is told once it comes nearer."""
        for position, sequence in enumerate(islice(self.queue.in_order(), POSITIONS_TOLD), start=1):
            if sequence.told_position != position:
                sequence.told_position = position
                self._tell(sequence, sequence.phase, now, sequence.cause)

    # Books --------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """True while anybody runs or waits."""
        return bool(self.requests)

    def load(self) -> Load:
        """The books in one value."""
        running = Counter(sequence.service_class for sequence in self.running)
        pool = self.pool

        def by_class(count: Callable[[ServiceClass], int]) -> tuple[int, int, int]:
            return count(ServiceClass.INTERACTIVE), count(ServiceClass.STANDARD), count(ServiceClass.BATCH)

        return Load(
            running=by_class(running.__getitem__),
            waiting=by_class(lambda c: self.queue.count(c) - self.queue.count_paused(c)),
            paused=by_class(self.queue.count_paused),
            pages=PageCounts(pool.total, pool.held, pool.cached, pool.free, self.host.used, self.host.total),
            counters=Counters(**self._counts),
        )

    def check_integrity(self) -> None:
        """Hold slots, pages, host pages and queue against every sequence. Raises `IntegrityError`. O(everything)."""
        alive = [sequence for choices in self.requests.values() for sequence in choices]
        self.pool.check_integrity(sequence.page_table for sequence in alive)
        self.host.check_integrity([*(s.host_pages for s in alive), self._moves.spent_host_pages])
        occupied = {slot for slot, sequence in enumerate(self._slots) if sequence is not None}
        assert occupied.isdisjoint(self._free_slots), (occupied, self._free_slots)
        assert len(occupied) + len(self._free_slots) == len(self._slots)
        assert {s.slot for s in self.running} == occupied
        assert {id(s) for s in alive if s.state is State.RUNNING} == {id(s) for s in self.running}
        waiting = [s for s in alive if s.state in (State.WAITING, State.PAUSED)]
        assert len(waiting) == len(self.queue)
        assert set(waiting) == set(self.queue.in_order())
        assert all(s.page_table == [] for s in alive if s.state is not State.RUNNING)
        assert all((s.phase.state == "running") == (s.state is State.RUNNING) for s in alive)
        if not self._flights:
            assert all((s.phase is Phase.DECODE) == (s.num_uncomputed <= 1) for s in self.running)
        lacking = {id(s) for s in self.running if len(s.page_table) < s.pages_needed and s.num_tokens < s.most_tokens}
        assert lacking <= {id(s) for s in self._outgrown}

    # Inside -------------------------------------------------------------------------------------------------------

    def _depart(self, decodes: list[Sequence], chunks: list[Chunk], now: float) -> Flight:
        """From here on the step's tokens count as computed, and those it samples as had."""
        size, outgrown, noted = self.config.page_size, self._outgrown, []
        # As in `commit`.
        for sequence in decodes:
            sequence.num_computed = computed = sequence.num_computed + 1
            sequence.num_tokens = length = sequence.num_tokens + 1
            if computed <= sequence.high_water:
                self._counts["recomputed_tokens"] += 1
            else:
                sequence.high_water = computed
            if computed % size == 0 or sequence.siblings:
                noted.append((sequence, computed))
            if length > len(sequence.page_table) * size and length < sequence.most_tokens:
                outgrown.append(sequence)
        sampled = list(decodes)
        turning, self._swapped_in = self._swapped_in, []
        for chunk in chunks:
            chunked = self._slots[chunk.slot]
            assert chunked is not None, f"slot {chunk.slot} is empty"
            if chunked.cause is not None:
                self._tell(chunked, chunked.phase, now)
            before = chunked.num_computed
            chunked.num_computed = after = before + chunk.length
            if before < chunked.high_water:
                self._counts["recomputed_tokens"] += min(chunked.high_water, after) - before
            chunked.high_water = max(chunked.high_water, after)
            noted.append((chunked, after))
            if chunk.samples:
                chunked.num_tokens += 1
                sampled.append(chunked)
                if chunked.num_tokens > len(chunked.page_table) * size and chunked.num_tokens < chunked.most_tokens:
                    outgrown.append(chunked)
            if chunked.num_uncomputed == 1:
                turning.append(chunked)
        return Flight(noted, sampled, len(decodes) + sum(chunk.length for chunk in chunks), turning)

    def _tell(self, sequence: Sequence, phase: Phase, now: float, cause: Cause | None = None, cached: int = 0) -> None:
        """From now on the time of `sequence` goes to `phase`, for `cause`."""
        sequence.phase, sequence.cause = phase, cause
        is_paused = phase is Phase.PAUSED
        self._events.append(
            StatusEvent(
                sequence.request.id,
                sequence.choice,
                phase,
                sequence.told_position if sequence.state in (State.WAITING, State.PAUSED) else 0,
                cause,
                sequence.paused_by if is_paused else None,
                sequence.mechanism if is_paused else None,
                sequence.paused_why if is_paused else "",
                cached,
                now,
            )
        )

    def _grow_running(self, now: float) -> None:
        """Give every running sequence the page that its next token needs; pause others, or itself, if there is none."""
        outgrown, self._outgrown = self._outgrown, []
        for sequence in sorted(outgrown, key=_service_order):
            while sequence.state is State.RUNNING and len(sequence.page_table) < sequence.pages_needed:
                if self.pool.available:
                    assert sequence.slot is not None
                    page = self.pool.allocate()
                    self._moves.grow(sequence.slot, len(sequence.page_table), page)
                    sequence.page_table.append(page)
                    continue
                mine = sequence.service_class
                victim = self.policy.victim(s for s in self.running if s.service_class >= mine)
                assert victim is not None
                self.pause(victim, now, by=mine if victim.service_class > mine else None)

    def _admit(self, now: float) -> None:
        """Let those who wait join, next first, until one does not fit. Nobody overtakes the one who does not fit:
        whatever becomes free is its. Only an overdue one lets higher classes pass, and that not for ever."""
        while True:
            overdue = self.queue.overdue_head() if self._overdue_lane_is_open() else None
            if overdue is not None:
                if self._try_start(overdue, self._pausable(overdue.service_class), self.policy.min_share, now):
                    continue
                if overdue.cause is Cause.PAGES and self.policy.is_overdue(overdue, now, times=2):
                    return
            sequence = self.queue.head()
            if sequence is None or not self._try_start(sequence, self._pausable(sequence.service_class + 1), 0, now):
                return

    def _overdue_lane_is_open(self) -> bool:
        return sum(s.is_protected for s in self.running) < self.policy.overdue_slots

    def _pausable(self, from_class: int) -> list[Sequence]:
        """Those of `from_class` or a lower one who may be paused to let another run. Not who has only just joined: its
        pages are written in this step."""
        if self.config.batching == "static":
            return []
        return [
            s
            for s in self.running
            if s.service_class >= from_class and not s.is_protected and not self._moves.has_joined(s.slot)
        ]

    def _try_start(self, sequence: Sequence, pausable: list[Sequence], share: int, now: float) -> bool:
        """Start `sequence`, pausing others if it takes that; or note what it lacks."""
        if sequence.is_awaited:  # paused a moment ago: its last token is known when the step under way is committed
            return False
        if not self._free_slots and not pausable:
            return self._leave_waiting(sequence, Cause.SLOTS, now)
        reused = self._reusable_pages(sequence, pausable)
        if not self._make_room(sequence, pausable, reused, now):
            return self._leave_waiting(sequence, Cause.PAGES, now)
        self._start(sequence, reused, now)
        sequence.share_left = share
        return True

    def _leave_waiting(self, sequence: Sequence, cause: Cause, now: float) -> bool:
        """It is the first of its lane, and lacks something."""
        if sequence.cause is not cause:
            sequence.told_position = 1 if sequence.is_overdue else 1 + self.queue.num_overdue
            self._tell(sequence, sequence.phase, now, cause)
        return False

    def _reusable_pages(self, sequence: Sequence, pausable: list[Sequence]) -> list[int]:
        """Pages whose content `sequence` would otherwise compute; takes no reference. They stay what they are while
        `pausable` are paused: published pages are remembered, and a lead is only copied when it stays."""
        if sequence.host_pages:
            return []
        lead = sequence.lead
        if lead is not None and lead.state is State.RUNNING and lead.num_computed >= sequence.prompt_len:
            assert lead.slot is not None
            if sequence.num_generated == 0 and lead not in pausable and not self._moves.has_joined(lead.slot):
                return lead.page_table[: -(-(sequence.prompt_len - 1) // self.config.page_size)]
        return self.pool.lookup(sequence.reusable_digests()) if self.config.enable_prefix_caching else []

    def _make_room(self, sequence: Sequence, pausable: list[Sequence], reused: list[int], now: float) -> bool:
        """Pause some of `pausable` until `sequence` fits; false, pausing nobody, where that would not be enough."""
        pool = self.pool
        # Cached pages that it takes up again leave `available` too; a shared partial page is copied (hence no floor).
        size = self.config.page_size
        full = [page for index, page in enumerate(reused) if (index + 1) * size < len(sequence.tokens)]

        def lacking() -> int:
            idle = sum(pool.references(page) == 0 for page in reused)
            return sequence.pages_needed - len(full) + idle - pool.available

        # Those who stay will grow; without this margin an arrival is let in only to be paused in the next steps.
        staying = len(self.running) - len(pausable)
        margin = min(staying, pool.total // 16)
        if lacking() + margin > 0:
            taken_up = set(reused)  # pausing their holders gains nothing: they leave `available` at once
            held_by_them = Counter(page for s in pausable for page in s.page_table if page not in taken_up)
            reclaimable = sum(count == pool.references(page) for page, count in held_by_them.items())
            if lacking() + margin > reclaimable:
                return False
        while not self._free_slots or lacking() + margin > 0:
            victim = self.policy.victim(pausable)
            assert victim is not None
            pausable.remove(victim)
            self.pause(
                victim, now, by=sequence.service_class if victim.service_class > sequence.service_class else None
            )
        return True

    def _start(self, sequence: Sequence, reused: list[int], now: float) -> None:
        """Give `sequence` a slot and pages for all its known tokens."""
        pool, size = self.pool, self.config.page_size
        first_time = sequence.state is State.WAITING
        self.queue.remove(sequence)
        for page in reused:
            pool.acquire(page)
        table = list(reused)
        if reused:
            sequence.num_computed = min(len(reused) * size, len(sequence.tokens) - 1)
            if sequence.num_computed < len(reused) * size:
                # The last page is shared and will be written: copy it.
                table[-1] = pool.allocate()
                self._moves.copy(reused[-1], table[-1])
                pool.release([reused[-1]])
        table += (pool.allocate() for _ in range(sequence.pages_needed - len(table)))
        # A prompt that the cache has but for its last token is read by the step that answers it.
        phase = Phase.PREFILL if sequence.num_uncomputed > 1 else Phase.DECODE
        if sequence.host_pages:
            self._moves.swap_in(sequence.host_pages, table[: len(sequence.host_pages)])
            sequence.host_pages = []
            self._swapped_in.append(sequence)
            phase = Phase.SWAPPING
        slot = self._free_slots.pop()
        self._slots[slot] = sequence
        sequence.slot, sequence.page_table, sequence.state = slot, table, State.RUNNING
        insort(self.running, sequence, key=_service_order)
        self._moves.join(
            Join(
                slot,
                tuple(sequence.tokens),
                sequence.prompt_len,
                sequence.choice,
                sequence.request.sampling,
                tuple(table),
            )
        )
        if first_time and sequence.lead is None:
            self._counts["prompt_tokens"] += sequence.prompt_len
            self._counts["cached_tokens"] += sequence.num_computed
        self._tell(sequence, phase, now, cached=sequence.num_computed if first_time else 0)

    def _publish(self, sequence: Sequence, computed: int, now: float) -> None:
        """The first `computed` tokens of `sequence` are known and have their KV in its pages, if it still has them."""
        full = computed // self.config.page_size
        if self.config.enable_prefix_caching and sequence.state is State.RUNNING:
            for index in range(sequence.num_published, full):
                self.pool.publish(sequence.page_table[index], sequence.digest(index))
                sequence.num_published = index + 1
        if sequence.siblings and computed >= sequence.prompt_len:
            self._release_siblings(sequence, now)

    def _release_siblings(self, lead: Sequence, now: float) -> None:
        """The prompt is computed, or its lead is gone: the other choices may run."""
        for sibling in lead.siblings:
            if sibling.state is State.HELD_BACK:
                sibling.state = State.WAITING
                sibling.waiting_since = now
                self.queue.push(sibling)
        lead.siblings = []

    def _vacate(self, sequence: Sequence) -> None:
        """Give back slot and pages."""
        assert sequence.slot is not None
        self.pool.release(reversed(sequence.page_table))
        self._slots[sequence.slot] = None
        self._free_slots.append(sequence.slot)
        self.running.remove(sequence)
        sequence.page_table, sequence.slot = [], None

    def _finish(self, sequence: Sequence, now: float) -> None:
        """Whatever it holds, wherever it waits: the sequence is gone."""
        if sequence.state is State.RUNNING:
            self._vacate(sequence)
        elif sequence.state in (State.WAITING, State.PAUSED):
            self.queue.remove(sequence)
        self._moves.cancel_swap_out(sequence.host_pages)
        self.host.release(sequence.host_pages)
        sequence.host_pages = []
        sequence.state = State.FINISHED
        self._release_siblings(sequence, now)
        choices = self.requests[sequence.request.id]
        choices.remove(sequence)
        if not choices:
            del self.requests[sequence.request.id]
            self._counts["finished"] += 1
