"""Snapshot of slots and queue for the live view. Reads the scheduler, changes nothing."""

from __future__ import annotations

from itertools import islice

from engine.load import SlotView, Snapshot, WaitView
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, State

MAX_WAITING = 20


def snapshot(scheduler: Scheduler, now: float) -> Snapshot:
    """Return the running sequences and the first few waiting ones. O(slots)."""
    return Snapshot(
        slots=tuple(_slot(sequence) for sequence in scheduler.running),
        waiting=tuple(_waiting(sequence, now) for sequence in islice(scheduler.policy.in_order(), MAX_WAITING)),
        total_slots=scheduler.config.max_num_seqs,
        page_size=scheduler.config.tokens_per_page,
    )


def _slot(sequence: Sequence) -> SlotView:
    assert sequence.slot is not None
    return SlotView(
        slot=sequence.slot,
        request_id=sequence.request.id,
        service_class=sequence.service_class,
        state="decode" if sequence.num_uncomputed == 1 else "prefill",
        context=sequence.num_computed,
        generated=sequence.num_generated,
        pages=len(sequence.page_table),
        step_tokens=sequence.speculator.tokens_of_step(len(sequence.tokens)) if sequence.speculator is not None else 1,
    )


def _waiting(sequence: Sequence, now: float) -> WaitView:
    return WaitView(
        request_id=sequence.request.id,
        service_class=sequence.service_class,
        paused=sequence.state is State.PREEMPTED,
        waited=now - sequence.waiting_since,
        context=len(sequence.tokens),
        cause=sequence.cause,
        by=sequence.preempted_by,
        mechanism=sequence.mechanism,
    )
