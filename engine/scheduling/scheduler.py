"""Scheduler: decides each step and commits its outcome.

State changes only in `schedule` and `commit`, and between steps in `submit`, `abort`, `change` and `preempt`. The
policy returns its choices as values, which the scheduler applies; `take_events` returns all events. Iteration-level
scheduling follows Orca (Yu et al., OSDI'22), paging follows vLLM (Kwon et al., SOSP'23).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain

from msgspec.structs import replace

from engine.config import EngineConfig
from engine.load import EngineLoad
from engine.scheduling.admission import Admission, AdmissionView, Preemption
from engine.scheduling.batch import Batch, Chunk, Join, Sampled, StepOutcome
from engine.scheduling.batch_builder import BatchBuilder
from engine.scheduling.batch_slots import BatchSlots
from engine.scheduling.budget import divide_step, is_paced
from engine.scheduling.changes import RequestChanges
from engine.scheduling.constrained import ConstrainedSequences
from engine.scheduling.constraint import Constraint
from engine.scheduling.counters import CumulativeCounters
from engine.scheduling.deadlines import Deadlines
from engine.scheduling.events import EventBuffer
from engine.scheduling.kv_manager import KVManager
from engine.scheduling.policy import Policy
from engine.scheduling.sequence import Sequence, State
from engine.scheduling.speculation import Speculation
from engine.scheduling.step_estimates import StepEstimates
from engine.scheduling.step_failures import failures
from engine.scheduling.step_in_flight import StepInFlight, count_as_computed
from engine.scheduling.trials import Trials
from engine.scheduling.wait_queue import WaitQueue
from engine.types import (
    Event,
    FinishReason,
    Phase,
    PreemptionMode,
    PromptEvent,
    Request,
    ServiceClass,
    TokenEvent,
    WaitReason,
)


class Scheduler:
    """Slots, pages and the queue of one engine. Tokens are integers; times are seconds on the clock of `now`."""

    def __init__(self, config: EngineConfig, policy: Policy, *, num_pages: int, host_pages: int, max_len: int) -> None:
        self.config = config
        self.policy = policy
        self.max_len = max_len
        self.batch_builder = BatchBuilder()
        self.counters = CumulativeCounters()
        self.kv_manager = KVManager(config, self.batch_builder, self.counters, num_pages, host_pages)
        self.estimates = StepEstimates(policy, self.kv_manager)
        self.batch_slots = BatchSlots(policy, self.kv_manager, config.max_num_seqs)
        self.running, self.slots = self.batch_slots.running, self.batch_slots.sequences
        self.requests: dict[str, list[Sequence]] = {}  # the unfinished choices of each request
        self.needing_page: list[Sequence] = []  # sequences that need a further page for the next token
        self.steps_in_flight: deque[StepInFlight] = deque()  # steps decided and not committed, oldest first
        self._events = EventBuffer()
        self.waiting = WaitQueue(config, policy, self._events)
        self.trials = Trials(self._events, self.counters)
        self._deadlines = Deadlines(self.estimates.min_seconds_left)
        self.changes = RequestChanges(self.batch_slots, self.kv_manager, self.waiting, self._deadlines, self._events)
        self._swapped_in: list[Sequence] = []  # in the step that is being scheduled
        self._arrivals = 0
        self._constrained = ConstrainedSequences(policy, self._events, self.counters)
        self.speculation: Speculation | None = None  # of steps with drafts, if the runner accepts them

    # Between steps ------------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float, constraints: Mapping[int, Constraint] | None = None) -> None:
        """Queue `request`. The engine has checked that it fits context and pool, and that its ID is new.

        constraints: by choice, each after the choice's output so far.
        """
        size = self.config.tokens_per_page
        lead, *siblings = (
            Sequence(request, choice, self._arrivals, now, size, self.max_len) for choice in request.choices
        )
        self._arrivals += 1
        self.requests[request.id] = [lead, *siblings]
        lead.siblings = siblings
        for sibling in siblings:
            sibling.state, sibling.cause = State.WAITING_FOR_PROMPT, WaitReason.PROMPT
            sibling.prompt_leader = lead
        for sequence in self.requests[request.id]:
            if constraints:
                self._constrained.add(sequence, constraints[sequence.choice])
            self._deadlines.watch(sequence)
        if request.is_trial:
            self.trials.add(request)
        self.waiting.push(lead, now)
        if request.is_paused:
            self.changes.pause(self.requests[request.id], now)

    def change(self, request_id: str, now: float, *, is_paused: bool, service_class: ServiceClass) -> None:
        """Pause or resume a request, and move it to a class.

        Unknown and finished IDs are ignored, because a change may cross the last token.
        """
        if choices := self.requests.get(request_id):
            request = replace(choices[0].request, is_paused=is_paused, service_class=service_class)
            self.trials.change(request)
            self.changes.apply(choices, request, now)

    def abort(self, request_id: str, now: float, choice: int | None = None) -> None:
        """End a request, or one of its choices, in any state.

        Unknown and finished IDs are ignored, because an abort may cross the last token.
        """
        for sequence in list(self.requests.get(request_id, ())):
            if choice is None or sequence.choice == choice:
                self._events.end(sequence, now, FinishReason.ABORT)
                self._finish(sequence, now)

    def preempt(self, sequence: Sequence, now: float, *, mechanism: PreemptionMode | None = None) -> None:
        """Take slot and pages from a running sequence and queue it again. Without `mechanism` the policy chooses."""
        self._preempt(self.policy.preemption(self._view(), sequence, mode=mechanism), now)

    def report_status(self, request_id: str, now: float) -> None:
        """Report the current phase of each choice of a request once more, for a new receiver of its events."""
        for sequence in self.requests.get(request_id, ()):
            self._events.status(sequence, sequence.phase, now, sequence.cause)

    # A step -------------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> Batch:
        """Decide the next step: growth, preemption, admission, and the number of tokens for each sequence.

        The previous step may still be in flight; its tokens count as computed.
        """
        self.kv_manager.begin_step(now)
        for sequence, why in self._deadlines.unreachable(now):
            self.counters.add("late")
            for choice in list(self.requests[sequence.request.id]):  # the deadline applies to all choices
                self._events.end(choice, now, FinishReason.ERROR, why, "deadline_exceeded", "deadline_ms")
                self._finish(choice, now)
        self.policy.begin_step(now)
        # Before sequences grow: one that is preempted for memory belongs to the running batch.
        self.waiting.begin_step(len(self.running), now)
        self._grow_running(now)
        self._admit_waiting(now)
        self.waiting.report_arrivals(now)
        self.counters.add("steps")
        step = self.counters["steps"]
        swapped_in = {s.slot for s in self._swapped_in}  # their pages arrive before the next step
        running = [s for s in self.running if s.slot not in swapped_in] if swapped_in else self.running
        running = self.trials.computed(running, now, is_in_flight=bool(self.steps_in_flight))
        running = self._constrained.prepared(running, now)
        if self.speculation is not None and self.steps_in_flight:
            running = self.speculation.ready(running, self.steps_in_flight)
        decodes, chunks, passed_over = divide_step(running, self.config, self.policy, step, now)
        if self.speculation is not None and not self.trials.current:
            decodes, chunks = self.speculation.divide(decodes, chunks)
        self._events.budget_wait(passed_over, now)
        flight = self._count_as_computed(decodes, chunks, now)
        slots = [s.slot for s in decodes if s.slot is not None]
        batch = self.batch_builder.build(step, slots, chunks, self._constrained.in_step(flight.sampled))
        if not batch.is_empty:
            self.steps_in_flight.append(flight)
        return batch

    def commit(self, outcome: StepOutcome, now: float) -> None:
        """Commit the outcome of the oldest step in flight.

        Appends tokens, publishes full pages and removes finished sequences. Sequences that have ended or were preempted
        since the launch are handled.
        """
        flight = self.steps_in_flight.popleft()
        # Before any page of this step can be found.
        for sequence, (code, message) in failures(flight, outcome):
            if sequence.state is not State.FINISHED:
                self._events.end(sequence, now, FinishReason.ERROR, message, code)
                self._finish(sequence, now)
        for sequence, table, computed in flight.to_publish:
            self._publish(sequence, table, computed, now)
        for index, prompt_tokens in outcome.prompt_tokens.items():
            if (sequence := flight.chunked[index]).state is not State.FINISHED:
                start = flight.chunk_starts[index] + 1
                self._events.events.append(PromptEvent(sequence.request.id, sequence.choice, start, prompt_tokens))
        for sequence in flight.new_phases:
            if sequence.state is State.RUNNING:  # a cause that still applies is kept
                phase = Phase.PREFILL if sequence.num_uncomputed > 1 else Phase.DECODE
                self._events.status(sequence, phase, now, sequence.cause)
        # Code that runs for every sequence in every step is inlined: benchmarks/scheduler_cost.py measures it.
        events, finished = self._events.events, State.FINISHED
        served = [sequence for sequence in flight.sampled if sequence.state is not finished]
        self.policy.tokens_sampled(served)
        sampled_tokens: Iterable[tuple[Sequence, Sampled]] = zip(flight.sampled, outcome.sampled, strict=True)
        if flight.drafted and self.speculation is not None:
            self.speculation.count_drafts(flight, outcome)
            publish = partial(self._publish, now=now)
            further = self.speculation.further_tokens(flight, outcome, publish, self.needing_page)
            sampled_tokens = chain(sampled_tokens, further)
        for sequence, sampled in sampled_tokens:
            if sequence.state is finished:
                continue
            token_id, tokens = sampled.token_id, sequence.tokens
            tokens.append(token_id)
            finish = None
            if len(tokens) >= sequence.max_len or token_id in sequence.stop_ids:
                finish = sequence.finish_reason(token_id)
                if finish is not None:
                    self._events.status(sequence, Phase.ENDED, now)
            events.append(
                TokenEvent(sequence.request.id, sequence.choice, token_id, finish, sampled.logprob, sampled.top)
            )
            if finish is not None:
                if self.speculation is not None:
                    self.speculation.remember(sequence)
                self._finish(sequence, now)
            elif sequence.constraint is not None:
                self._constrained.advance(sequence, token_id)
        self._constrained.prepare_masks(self.speculation)
        self.counters.add("computed_tokens", flight.num_tokens)
        self.counters.add("generated_tokens", len(served))
        if self.trials.current:  # steps of a trial are not in flight beside others
            self.trials.count_tokens(len(served), self.requests.get(self.trials.current, ()))

    def take_events(self) -> list[Event]:
        """Return the events since the last call, in order."""
        return self._events.take()

    @property
    def has_work(self) -> bool:
        """Return whether there is any request. `next_step_at` returns when it takes a step."""
        return bool(self.requests)

    @property
    def waits_for_masks(self) -> bool:
        """Return whether sequences missed the last step because their masks were not computed."""
        return self._constrained.waits_for_masks

    def next_step_at(self, now: float) -> float:
        """Return the time of the next step: now, unless all requests are paused, or wait for a batch to be complete."""
        if len(self.requests) == self.changes.paused_requests:
            return max(now, self._deadlines.next_alarm())
        if self.running or not self.waiting.admits_batches:
            return now
        return min(self.waiting.opens_at(now), self._deadlines.next_alarm())

    def load(self) -> EngineLoad:
        """Return the current load and counters."""
        return EngineLoad(
            running=self.batch_slots.by_class.as_tuple(),
            waiting=self.waiting.new.as_tuple(),
            paused=self.waiting.paused.as_tuple(),
            pages=self.kv_manager.page_counts(),
            counters=self.counters.to_counters(),
            suspended=self.changes.suspended.as_tuple(),
        )

    # Internals ----------------------------------------------------------------------------------------------------

    def _count_as_computed(self, decodes: list[Sequence], chunks: list[Chunk], now: float) -> StepInFlight:
        """Count the step's tokens as computed; sequences with chunks do not wait any more."""
        chunked = []
        is_slow = is_paced(decodes, chunks, self.config, self.policy)
        for chunk in chunks:
            sequence = self.slots[chunk.slot]
            assert sequence is not None, f"slot {chunk.slot} is empty"
            cause = WaitReason.PACE if is_slow and not chunk.samples else None
            if sequence.cause is not cause:
                self._events.status(sequence, sequence.phase, now, cause)
            chunked.append((sequence, chunk))
        swapped_in, self._swapped_in = self._swapped_in, []
        flight, outgrown = count_as_computed(decodes, chunked, swapped_in, self.counters, self.config.tokens_per_page)
        self.needing_page += outgrown
        return flight

    def _grow_running(self, now: float) -> None:
        """Give every running sequence the page for its next token.

        If there is none, another sequence is preempted, or the sequence itself.
        """
        outgrown, self.needing_page = self.needing_page, []
        for sequence in sorted(outgrown, key=self.policy.service_order):
            while sequence.state is State.RUNNING and len(sequence.page_table) < sequence.pages_needed:
                if not self.kv_manager.grow(sequence):
                    self._preempt(self.policy.preemption_for_growth(self._view(), sequence), now)

    def _view(self) -> AdmissionView:
        """Return the current slots and pages for the policy."""
        return AdmissionView(
            pages=self.kv_manager,
            running=self.running,
            has_free_slot=bool(self.batch_slots.free),
            joined_slots=self.batch_builder.joined_slots,
            admits_batches=self.waiting.admits_batches,
            is_closed=self.waiting.is_closed,
        )

    def _admit_waiting(self, now: float) -> None:
        """Apply the policy's plans, each made with the slots and pages that the previous one left."""
        if self.waiting.is_closed or self.trials.is_draining:  # joins would put a further step in flight
            return
        while True:
            plan = self.policy.plan_admission(self._view(), now)
            for shortage in plan.shortages:
                self.waiting.report_shortage(shortage, now)
            for preemption in plan.preemptions:
                self._preempt(preemption, now)
            if plan.admission is None:
                return
            self._start(plan.admission, now)

    def _preempt(self, preemption: Preemption, now: float) -> None:
        """Take slot and pages from the victim and queue it again."""
        sequence = preemption.victim
        assert sequence.state is State.RUNNING and sequence.slot not in self.batch_builder.joined_slots, sequence
        if preemption.mode is PreemptionMode.SWAP:
            self.kv_manager.swap_out(sequence)
            self.counters.add("swapped_tokens", sequence.num_computed)
        else:
            sequence.num_computed = 0
        self.counters.count_preemption(sequence.service_class, preemption.mode)
        self.batch_slots.release(sequence)
        sequence.state = State.PREEMPTED
        if sequence.num_generated - sequence.generated_at_wait >= self.config.min_share:
            sequence.waiting_since, sequence.generated_at_wait = now, sequence.num_generated
        self.policy.on_preempted(sequence)
        self.waiting.push(sequence, now)
        self._deadlines.watch(sequence)
        self._events.preempted(preemption, now)

    def _start(self, admission: Admission, now: float) -> None:
        """Give a waiting sequence a slot and pages for all its known tokens."""
        sequence = admission.sequence
        first_time = sequence.state is State.WAITING
        self.waiting.admit(sequence)
        is_swapping_in = self.kv_manager.allocate(sequence, admission.reused_pages, admission.restored_pages)
        # A prompt that is cached except for its last token is read by the step that answers it.
        phase = Phase.PREFILL if sequence.num_uncomputed > 1 else Phase.DECODE
        if is_swapping_in:
            self._swapped_in.append(sequence)
            phase = Phase.SWAPPING
        slot, sequence.state = self.batch_slots.take(sequence), State.RUNNING
        if sequence.constraint is not None:
            sequence.constraint.prepare_mask()
        self.batch_builder.join(
            Join(
                slot,
                tuple(sequence.tokens),
                sequence.prompt_len,
                sequence.choice,
                sequence.request.sampling,
                tuple(sequence.page_table),
            )
        )
        if first_time and sequence.prompt_leader is None:
            self.counters.add("prompt_tokens", sequence.prompt_len)
            self.counters.add("cached_tokens", min(sequence.num_computed, sequence.prompt_len))
        fresh = max(0, sequence.prompt_len - sequence.num_computed) if first_time else sequence.lost_tokens
        sequence.was_paused = False
        self.policy.slot_taken(admission, fresh + self.kv_manager.take_charge(sequence), is_resumed=not first_time)
        note = self.kv_manager.cache_note(sequence, now) if first_time else None
        self._events.status(sequence, phase, now, cached=sequence.num_computed if first_time else 0, note=note)

    def _publish(self, sequence: Sequence, table: list[int], computed: int, now: float) -> None:
        """Publish the full pages among the first `computed` tokens, which are stored in `table`.

        Skipped if it has another page table by now: it was preempted and resumed, and its new pages are empty.
        """
        if sequence.page_table is table:
            self.kv_manager.publish(sequence, computed)
        if sequence.siblings and computed >= sequence.prompt_len:
            self.changes.release_siblings(sequence, now)

    def _finish(self, sequence: Sequence, now: float) -> None:
        """Remove a sequence in any state and release its resources."""
        if sequence.state is State.RUNNING:
            self.kv_manager.end(sequence, now)
            self.batch_slots.release(sequence)
        elif sequence.state in (State.WAITING, State.PREEMPTED):
            self.waiting.remove(sequence)
        elif sequence.state is State.SUSPENDED:
            self.changes.remove(sequence)
        self.kv_manager.release_host(sequence)
        sequence.state = State.FINISHED
        self._constrained.remove(sequence)
        self._deadlines.forget(sequence)
        self.changes.release_siblings(sequence, now)
        choices = self.requests[sequence.request.id]
        choices.remove(sequence)
        if not choices:
            del self.requests[sequence.request.id]
            self.trials.remove(sequence.request.id)
            self.changes.forget_request(sequence.request)
            self.counters.add("finished")
