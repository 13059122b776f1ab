"""Scheduler: decides each step, and takes in what the step yielded.

State changes in `schedule` and `commit` only, and between steps in `submit`, `abort` and `pause`. It never calls back;
what others must know is returned by `take_events`. Iteration-level scheduling follows Orca (Yu et al., OSDI'22),
paging vLLM (Kwon et al., SOSP'23).
"""

from __future__ import annotations

import logging
from bisect import insort
from collections import deque
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.request_logging import log_request
from engine.scheduling.batch import Batch, Chunk, Join, Outcome
from engine.scheduling.books import ByClass, Totals, check_integrity, load_of
from engine.scheduling.budget import share_tokens
from engine.scheduling.deadlines import Deadlines
from engine.scheduling.memory import Memory
from engine.scheduling.moves import Moves
from engine.scheduling.news import News
from engine.scheduling.policy import Movable, Policy, Pressure, nobody
from engine.scheduling.sequence import Sequence, State
from engine.scheduling.waiting import Waiting
from engine.types import Cause, Event, FinishReason, Load, Mechanism, Phase, Request, TokenEvent

log = logging.getLogger("carousel.engine")

NOT_NUMBERS = (
    "the model computed NaN for this request, so its answer ends here; float16 is too narrow for some models (--dtype "
    "bfloat16 or float32), else the checkpoint is damaged"
)


@dataclass(frozen=True, slots=True)
class Flight:
    """A step between its decision and its outcome."""

    # Who fills a page or ends a chunk, in which pages, and how many of its tokens are computed then.
    noted: list[tuple[Sequence, list[int], int]]
    sampled: list[Sequence]  # in the order of `Batch.sampled`
    chunked: list[Sequence]  # in the order of `Batch.chunks`
    num_tokens: int
    turning: list[Sequence]  # who decodes from then on, or has its pages back


class Scheduler:
    """Slots, pages and the queue of one engine. Tokens are integers to it; time is what `now` says (seconds)."""

    def __init__(self, config: EngineConfig, policy: Policy, *, num_pages: int, host_pages: int, max_len: int) -> None:
        self.config = config
        self.policy = policy
        self.max_len = max_len
        self.moves = Moves()
        self.memory = Memory(config, self.moves, num_pages, host_pages)
        self.running: list[Sequence] = []  # in the policy's service order
        self.running_by_class = ByClass()
        self.requests: dict[str, list[Sequence]] = {}  # the unfinished choices of each request
        self.totals = Totals()
        self.free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self.slots: list[Sequence | None] = [None] * config.max_num_seqs
        self.outgrown: list[Sequence] = []  # whose next token needs a page that they do not have
        self.flights: deque[Flight] = deque()  # steps decided and not committed, oldest first
        self._news = News()
        self.waiting = Waiting(config, policy, self._news)
        self._deadlines = Deadlines(self._least_seconds)
        self._decided_at = 0.0  # the step that is being decided, or was last
        self._swapped_in: list[Sequence] = []  # in the step that is being decided
        self._arrivals = 0
        self._most_margin = num_pages // 16  # that is left for those who run

    # Between steps ------------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        """Let `request` wait. The engine has checked that it fits context and pool, and that its id is new."""
        size = self.config.tokens_per_page
        lead, *siblings = (
            Sequence(request, choice, self._arrivals, now, size, self.max_len) for choice in request.choices
        )
        self._arrivals += 1
        self.requests[request.id] = [lead, *siblings]
        lead.siblings = siblings
        for sibling in siblings:
            sibling.state, sibling.cause = State.HELD_BACK, Cause.PROMPT
            sibling.lead = lead
        for sequence in self.requests[request.id]:
            self._deadlines.watch(sequence)
        self.waiting.push(lead, now)

    def abort(self, request_id: str, now: float, choice: int | None = None) -> None:
        """End a request, or one of its choices, wherever it is. Unknown and finished ones are ignored: an abort may
        cross the last token on its way."""
        for sequence in list(self.requests.get(request_id, ())):
            if choice is None or sequence.choice == choice:
                self._news.tell_end(sequence, now, FinishReason.ABORT)
                self._finish(sequence, now)

    def pause(
        self,
        sequence: Sequence,
        now: float,
        *,
        made_for: Sequence | None = None,
        mechanism: Mechanism | None = None,
        pressure: Pressure | None = None,
    ) -> None:
        """Take slot and pages from a running sequence, for `made_for` or, without, as memory ran short among equals; it
        waits to go on. Without `mechanism` the policy chooses."""
        assert sequence.state is State.RUNNING and sequence.slot not in self.moves.joined, sequence
        mechanism = mechanism or self.policy.mechanism(sequence, pressure or self._pressure(0))
        why = self.policy.why_victim(sequence, made_for)
        if mechanism is Mechanism.SWAP:
            self.memory.swap_out(sequence)
            self.totals.add("swapped_tokens", sequence.num_computed)
        else:
            sequence.num_computed = 0
        self.totals.preempted(sequence.service_class, mechanism)
        self._vacate(sequence)
        sequence.state = State.PAUSED
        sequence.paused_by = made_for.service_class if made_for is not None else None
        sequence.mechanism, sequence.paused_why = mechanism, why
        sequence.told_position = 0
        if sequence.num_generated - sequence.waiting_from >= self.config.min_share:
            sequence.waiting_since, sequence.waiting_from = now, sequence.num_generated
        self._log_pause(sequence, made_for)
        self.policy.paused(sequence)
        self.waiting.push(sequence, now)
        self._deadlines.watch(sequence)
        self._news.tell(sequence, Phase.PAUSED, now, Cause.ORDER)

    def _log_pause(self, sequence: Sequence, made_for: Sequence | None) -> None:
        if log.isEnabledFor(logging.DEBUG):
            cause = "as memory ran short" if made_for is None else f"for request {made_for.request.log_id}"
            message, mechanism = "choice %d was preempted by %s %s: %s", sequence.mechanism
            values = (sequence.choice, mechanism, cause, sequence.paused_why)
            log_request(log, logging.DEBUG, sequence.request, message, *values)

    # A step -------------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> Batch:
        """Decide the next step: who grows, who is paused, who joins, and how many tokens of each are computed. The
        step before may still be under way: what it computes is taken as computed."""
        self._decided_at = now
        self.memory.begin_step()
        for sequence, why in self._deadlines.too_late(now):
            self.totals.add("late")
            for choice in list(self.requests[sequence.request.id]):  # all of it was to be there
                self._news.tell_end(choice, now, FinishReason.ERROR, why, "deadline_exceeded", "deadline_ms")
                self._finish(choice, now)
        self.policy.begin_step(now)
        # Before anybody grows: who is paused for memory belongs to the batch that runs.
        self.waiting.begin_step(len(self.running), now)
        self._grow_running(now)
        if not self.waiting.is_shut:
            self.policy.admit(self, now)
        self.waiting.tell_arrived(now)
        self.totals.add("steps")
        step = self.totals["steps"]
        coming = {s.slot for s in self._swapped_in}  # whose pages are there in the next step
        running = [s for s in self.running if s.slot not in coming] if coming else self.running
        decodes, chunks, passed_over = share_tokens(running, self.config, self.policy, step, now)
        self._news.tell_passed_over(passed_over, now)
        flight = self._depart(decodes, chunks, now)
        batch = self.moves.build(step, [s.slot for s in decodes if s.slot is not None], chunks)
        if not batch.is_empty:
            self.flights.append(flight)
        return batch

    def commit(self, outcome: Outcome, now: float) -> None:
        """Take in what the oldest step under way yielded: tokens are appended, full pages published, finished
        sequences leave. Who has left since, or was paused, is not in the way."""
        flight = self.flights.popleft()
        self._give_up_broken(flight, outcome, now)
        for sequence, table, computed in flight.noted:
            self._publish(sequence, table, computed, now)
        for sequence in flight.turning:
            if sequence.state is State.RUNNING:  # what keeps it meanwhile, if anything does, keeps it still
                phase = Phase.PREFILL if sequence.num_uncomputed > 1 else Phase.DECODE
                self._news.tell(sequence, phase, now, sequence.cause)
        # What runs for every sequence in every step is written out: benchmarks/scheduler_cost.py counts it.
        events, finished = self._news.events, State.FINISHED
        served = [sequence for sequence in flight.sampled if sequence.state is not finished]
        self.policy.served(served)
        for sequence, sampled in zip(flight.sampled, outcome.sampled, strict=True):
            if sequence.state is finished:
                continue
            token_id, tokens = sampled.token_id, sequence.tokens
            tokens.append(token_id)
            finish = None
            if len(tokens) >= sequence.most_tokens or token_id in sequence.stops:
                finish = sequence.finish_reason(token_id)
                if finish is not None:
                    self._news.tell(sequence, Phase.ENDED, now)
            events.append(
                TokenEvent(sequence.request.id, sequence.choice, token_id, finish, sampled.logprob, sampled.top)
            )
            if finish is not None:
                self._finish(sequence, now)
        self.totals.add("computed_tokens", flight.num_tokens)
        self.totals.add("generated_tokens", len(served))

    def foresee(self, batch: Batch) -> float:
        """Seconds that a step will take, by those made so far; what it moves is not counted."""
        return self.policy.pace.seconds(len(batch.decodes), batch.prompt_tokens)

    def is_recorded(self, batch: Batch) -> bool:
        """Whether it is launched at once, where any step is."""
        return not batch.chunks or batch.num_tokens <= self.policy.costs.recorded_tokens

    def observe(self, batch: Batch, seconds: float) -> None:
        """How long a step took."""
        if not (batch.swap_in or batch.swap_out or batch.copies):
            self.policy.pace.observe(len(batch.decodes), batch.prompt_tokens, seconds)

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order."""
        return self._news.take()

    @property
    def has_work(self) -> bool:
        """True while anybody runs or waits."""
        return bool(self.requests)

    def next_step_at(self, now: float) -> float:
        """When a step has something to do: now, unless all that is to be done is to wait for a batch to be complete."""
        if self.running or not self.waiting.is_in_batches:
            return now
        return min(self.waiting.opens_at(now), self._deadlines.next_alarm())

    def load(self) -> Load:
        """The books in one value."""
        return load_of(self)

    def check_integrity(self) -> None:
        """Hold the books against every sequence. Raises `IntegrityError`. O(everything)."""
        check_integrity(self)

    # What a policy may do while it admits -------------------------------------------------------------------------

    def movable(self) -> list[Sequence]:
        """Who may be paused in this step to let another run. Not who has only just joined: its pages are written in
        this step. Nobody where a batch is taken at a time."""
        if self.waiting.is_in_batches:
            return []
        joined = self.moves.joined
        return [s for s in self.running if s.slot not in joined]

    def try_start(self, sequence: Sequence, movable: Movable = nobody, margin: int | None = None) -> bool:
        """Start `sequence`, pausing some of `movable` if it takes that, which are asked for only then; or, pausing
        nobody, note what it lacks. `margin` pages must be left for those who run to grow; by default some are, where
        there are many."""
        if sequence.is_awaited:  # paused a moment ago: its last token is known when the step under way is committed
            return False
        now = self._decided_at
        found = self._find_room(sequence, movable, margin, now)
        if isinstance(found, Cause):
            self.waiting.tell_lack(sequence, found, now)
            return False
        self._start(sequence, found, now)
        return True

    # Inside -------------------------------------------------------------------------------------------------------

    def _depart(self, decodes: list[Sequence], chunks: list[Chunk], now: float) -> Flight:
        """From here on the step's tokens count as computed, and those it samples as had."""
        size, outgrown, noted = self.config.tokens_per_page, self.outgrown, []
        # As in `commit`.
        for sequence in decodes:
            sequence.num_computed = computed = sequence.num_computed + 1
            sequence.num_tokens = length = sequence.num_tokens + 1
            if computed <= sequence.high_water:
                self.totals.add("recomputed_tokens")
            else:
                sequence.high_water = computed
            if computed % size == 0 or sequence.siblings:
                noted.append((sequence, sequence.page_table, computed))
            if length > len(sequence.page_table) * size and length < sequence.most_tokens:
                outgrown.append(sequence)
        sampled, of_chunks = list(decodes), []
        turning, self._swapped_in = self._swapped_in, []
        for chunk in chunks:
            chunked = self.slots[chunk.slot]
            assert chunked is not None, f"slot {chunk.slot} is empty"
            of_chunks.append(chunked)
            if chunked.cause is not None:
                self._news.tell(chunked, chunked.phase, now)
            before = chunked.num_computed
            chunked.num_computed = after = before + chunk.length
            if before < chunked.high_water:
                self.totals.add("recomputed_tokens", min(chunked.high_water, after) - before)
            chunked.high_water = max(chunked.high_water, after)
            noted.append((chunked, chunked.page_table, after))
            if chunk.samples:
                chunked.num_tokens += 1
                sampled.append(chunked)
                if chunked.num_tokens > len(chunked.page_table) * size and chunked.num_tokens < chunked.most_tokens:
                    outgrown.append(chunked)
            if chunked.num_uncomputed == 1:
                turning.append(chunked)
        return Flight(noted, sampled, of_chunks, len(decodes) + sum(chunk.length for chunk in chunks), turning)

    def _least_seconds(self, sequence: Sequence) -> float:
        """`Pace.least_seconds`, with what the prefix cache would save it now."""
        cached = 0
        if sequence.lead is not None:
            cached = sequence.prompt_len
        elif sequence.state is State.WAITING:
            cached = self.memory.cached_tokens(sequence)
        return self.policy.pace.least_seconds(sequence, cached)

    def _pressure(self, lacking: int) -> Pressure:
        """How memory stands when `lacking` pages are missing; negative: so many are to spare."""
        growth = len(self.running) * -(-self.config.min_share // self.config.tokens_per_page)
        return Pressure(max(0, lacking), lacking + growth, self.memory.host.available)

    def _grow_running(self, now: float) -> None:
        """Give every running sequence the page that its next token needs; pause others, or itself, if there is none."""
        outgrown, self.outgrown = self.outgrown, []
        for sequence in sorted(outgrown, key=self.policy.service_order):
            while sequence.state is State.RUNNING and len(sequence.page_table) < sequence.pages_needed:
                if self.memory.grow(sequence):
                    continue
                pressure = self._pressure(1)
                victim = self.policy.victim(self.policy.may_make_way(sequence, self.running), pressure)
                is_lower = victim.service_class > sequence.service_class
                self.pause(victim, now, made_for=sequence if is_lower else None, pressure=pressure)

    def _find_room(self, sequence: Sequence, movable: Movable, margin: int | None, now: float) -> list[int] | Cause:
        """The cached pages that it would begin with, once there are a slot and pages for it; or, pausing nobody, what
        it lacks."""
        if self.waiting.is_shut:
            return Cause.BATCH
        candidates = [] if self.free_slots else movable()
        if not self.free_slots and not candidates:  # before the cache is looked into: most who wait hear this
            return Cause.SLOTS
        reused = self.memory.reusable(sequence, candidates)
        most_margin = self._most_margin if margin is None else margin
        if not self.free_slots or self.memory.lacking(sequence, reused) + most_margin > 0:
            candidates = candidates or movable()
            if sequence.lead in candidates:  # its pages may be somebody else's in a moment
                reused = self.memory.reusable(sequence, candidates)
            if not self._make_room(sequence, candidates, reused, margin, now):
                return Cause.PAGES
        return reused

    def _make_room(
        self, sequence: Sequence, movable: list[Sequence], reused: list[int], margin: int | None, now: float
    ) -> bool:
        """Pause some of `movable` until `sequence` fits; false, pausing nobody, where that would not be enough."""
        # Those who stay will grow; without this margin an arrival is let in only to be paused in the next steps.
        if margin is None:
            margin = min(len(self.running) - len(movable), self._most_margin)
        lacking = self.memory.lacking(sequence, reused) + margin
        if lacking > 0 and lacking > self.memory.reclaimable(movable, reused):
            return False
        while not self.free_slots or lacking > 0:
            pressure = self._pressure(lacking)
            victim = self.policy.victim(movable, pressure)
            movable.remove(victim)
            self.pause(victim, now, made_for=sequence, pressure=pressure)
            lacking = self.memory.lacking(sequence, reused) + margin
        return True

    def _start(self, sequence: Sequence, reused: list[int], now: float) -> None:
        """Give `sequence` a slot and pages for all its known tokens."""
        first_time = sequence.state is State.WAITING
        self.waiting.let_in(sequence)
        is_coming = self.memory.furnish(sequence, reused)
        # A prompt that the cache has but for its last token is read by the step that answers it.
        phase = Phase.PREFILL if sequence.num_uncomputed > 1 else Phase.DECODE
        if is_coming:
            self._swapped_in.append(sequence)
            phase = Phase.SWAPPING
        slot = self.free_slots.pop()
        self.slots[slot] = sequence
        sequence.slot, sequence.state = slot, State.RUNNING
        insort(self.running, sequence, key=self.policy.service_order)
        self.running_by_class.change(sequence.service_class, +1)
        self.moves.join(
            Join(
                slot,
                tuple(sequence.tokens),
                sequence.prompt_len,
                sequence.choice,
                sequence.request.sampling,
                tuple(sequence.page_table),
            )
        )
        if first_time and sequence.lead is None:
            self.totals.add("prompt_tokens", sequence.prompt_len)
            self.totals.add("cached_tokens", min(sequence.num_computed, sequence.prompt_len))
        fresh = max(0, sequence.prompt_len - sequence.num_computed) if first_time else 0
        self.policy.started(sequence, fresh, is_resumed=not first_time)
        self._news.tell(sequence, phase, now, cached=sequence.num_computed if first_time else 0)

    def _publish(self, sequence: Sequence, table: list[int], computed: int, now: float) -> None:
        """The first `computed` tokens of `sequence` are known and have their KV in the pages of `table`, if it still
        has these: paused and let in again while the step was under way, it has others, in which nothing is yet."""
        if sequence.page_table is table:
            self.memory.publish(sequence, computed)
        if sequence.siblings and computed >= sequence.prompt_len:
            self._release_siblings(sequence, now)

    def _release_siblings(self, lead: Sequence, now: float) -> None:
        """The prompt is computed, or its lead is gone: the other choices may run."""
        for sibling in lead.siblings:
            if sibling.state is State.HELD_BACK:
                sibling.state = State.WAITING
                sibling.waiting_since = now
                self.waiting.push(sibling, now)
                self._news.tell(sibling, Phase.QUEUED, now, Cause.STEP)
        lead.siblings = []

    def _vacate(self, sequence: Sequence) -> None:
        """Give back slot and pages."""
        assert sequence.slot is not None
        self.memory.release(sequence)
        self.slots[sequence.slot] = None
        self.free_slots.append(sequence.slot)
        self.running.remove(sequence)
        self.running_by_class.change(sequence.service_class, -1)
        self.policy.vacated(sequence)
        sequence.slot = None

    def _give_up_broken(self, flight: Flight, outcome: Outcome, now: float) -> None:
        """Who the model has no numbers for ends before any page of this step can be found: what has a NaN in it may
        have spoiled the keys and values of tokens before it too, as far as they were computed in one tile."""
        given_up = [s for s, token in zip(flight.sampled, outcome.sampled, strict=True) if token.token_id < 0]
        if outcome.broken:
            given_up += (s for s, is_broken in zip(flight.chunked, outcome.broken, strict=True) if is_broken)
        for sequence in given_up:
            if sequence.state is not State.FINISHED:
                self._news.tell_end(sequence, now, FinishReason.ERROR, NOT_NUMBERS, "not_a_number")
                self._finish(sequence, now)

    def _finish(self, sequence: Sequence, now: float) -> None:
        """Whatever it holds, wherever it waits: the sequence is gone."""
        if sequence.state is State.RUNNING:
            self._vacate(sequence)
        elif sequence.state in (State.WAITING, State.PAUSED):
            self.waiting.remove(sequence)
        self.memory.forget(sequence)
        sequence.state = State.FINISHED
        self._deadlines.forget(sequence)
        self._release_siblings(sequence, now)
        choices = self.requests[sequence.request.id]
        choices.remove(sequence)
        if not choices:
            del self.requests[sequence.request.id]
            self.totals.add("finished")
