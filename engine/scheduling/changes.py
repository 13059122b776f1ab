"""Changes of requests that have not ended: pauses and moves to another service class by their clients, and the release
of choices that wait for their prompt.

A suspended sequence has no slot, no device pages and no host pages, and is in no queue. Its full pages stay in the
prefix cache until others need the memory; what is lost of them is computed again. So paused requests take nothing away
from others, however many there are, and their number appears in no count of waiting sequences.
"""

from __future__ import annotations

from engine.scheduling.batch_slots import BatchSlots
from engine.scheduling.counters import ClassCounts
from engine.scheduling.deadlines import Deadlines
from engine.scheduling.events import EventBuffer
from engine.scheduling.kv_manager import KVManager
from engine.scheduling.sequence import Sequence, State, Suspension
from engine.scheduling.wait_queue import WaitQueue
from engine.types import Phase, Request, ServiceClass, WaitReason


class RequestChanges:
    """Changes of requests between steps, and the suspended sequences by class."""

    def __init__(
        self, slots: BatchSlots, kv_manager: KVManager, waiting: WaitQueue, deadlines: Deadlines, events: EventBuffer
    ) -> None:
        self.suspended = ClassCounts()
        self.paused_requests = 0
        self._slots = slots
        self._kv_manager = kv_manager
        self._waiting = waiting
        self._deadlines = deadlines
        self._events = events

    def apply(self, choices: list[Sequence], request: Request, now: float) -> None:
        """Give the unfinished choices of a request its new state: `request`, of another class, or paused or not."""
        was_paused = choices[0].request.is_paused
        for sequence in choices:
            sequence.request = request
            if sequence.service_class is not request.service_class:
                self._move(sequence, request.service_class, now)
        if request.is_paused and not was_paused:
            self.pause(choices, now)
        elif was_paused and not request.is_paused:
            self.paused_requests -= 1
            for sequence in choices:
                self._resume(sequence, now)

    def pause(self, choices: list[Sequence], now: float) -> None:
        """Suspend the unfinished choices of a request. Their tokens in a step in flight are still committed."""
        self.paused_requests += 1
        for sequence in choices:
            if sequence.state is State.WAITING_FOR_PROMPT:  # suspended when its lead has computed the prompt
                self._events.suspended(sequence, now)
                continue
            resumes_as = State.PREEMPTED
            if sequence.state is State.RUNNING:
                self._slots.release(sequence)
                sequence.waiting_since, sequence.generated_at_wait = now, sequence.num_generated
            else:
                resumes_as = sequence.state
                self._waiting.remove(sequence)
                self._kv_manager.release_host(sequence)
            sequence.num_computed = 0
            self.suspend(sequence, resumes_as, now)

    def suspend(self, sequence: Sequence, resumes_as: State, now: float) -> None:
        """Suspend a sequence that has no slot and is in no queue."""
        sequence.was_paused = True
        sequence.state, sequence.suspension = State.SUSPENDED, Suspension(resumes_as, now)
        self.suspended.add(sequence.service_class, +1)
        self._deadlines.watch(sequence)
        self._events.suspended(sequence, now)

    def release_siblings(self, lead: Sequence, now: float) -> None:
        """Queue the other choices of a request: their prompt is computed, or its lead has ended."""
        for sibling in lead.siblings:
            if sibling.state is not State.WAITING_FOR_PROMPT:
                continue
            sibling.state = State.WAITING
            sibling.waiting_since = now
            if sibling.request.is_paused:
                self.suspend(sibling, State.WAITING, now)
            else:
                self._waiting.push(sibling, now)
                self._events.status(sibling, Phase.QUEUED, now, WaitReason.STEP)
        lead.siblings = []

    def remove(self, sequence: Sequence) -> None:
        """Forget a suspended sequence that has ended."""
        self.suspended.add(sequence.service_class, -1)

    def forget_request(self, request: Request) -> None:
        """Forget a request whose choices have all ended."""
        self.paused_requests -= request.is_paused

    def _resume(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence again. Its wait before the pause counts, and the pause does not."""
        if sequence.state is State.WAITING_FOR_PROMPT:
            self._events.status(sequence, Phase.QUEUED, now, WaitReason.PROMPT)
            return
        assert sequence.suspension is not None, sequence
        suspension, sequence.suspension = sequence.suspension, None
        self.suspended.add(sequence.service_class, -1)
        sequence.waiting_since += now - suspension.since
        sequence.state = suspension.resumes_as
        self._queue(sequence, Phase.QUEUED, now)

    def _move(self, sequence: Sequence, service_class: ServiceClass, now: float) -> None:
        """Move a sequence to another class, in which it keeps its arrival and its wait."""
        if sequence.state is State.RUNNING:
            self._slots.change_class(sequence, service_class)
        elif sequence.state in (State.WAITING, State.PREEMPTED):
            self._waiting.remove(sequence)
            sequence.service_class = service_class
            self._queue(sequence, sequence.phase, now)
        else:
            if sequence.state is State.SUSPENDED:
                self.suspended.add(sequence.service_class, -1)
                self.suspended.add(service_class, +1)
            sequence.service_class = service_class

    def _queue(self, sequence: Sequence, phase: Phase, now: float) -> None:
        sequence.reported_position = 0
        self._waiting.push(sequence, now)
        self._events.status(
            sequence, phase, now, WaitReason.STEP if sequence.state is State.WAITING else WaitReason.ORDER
        )
