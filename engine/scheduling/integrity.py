"""Consistency of the scheduler's state, for tests."""

from __future__ import annotations

from collections import Counter

from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import State
from engine.types import Phase, ServiceClass


def check_integrity(scheduler: Scheduler) -> None:
    """Check slots, pages, host pages and queue against every sequence.

    Raises `IntegrityError` or `AssertionError`. The cost grows with all pages and sequences.
    """
    alive = [sequence for choices in scheduler.requests.values() for sequence in choices]
    scheduler.kv_manager.pool.check_integrity(sequence.page_table for sequence in alive)
    disk = scheduler.kv_manager.disk
    moving = disk.host_pages if disk is not None else []
    scheduler.kv_manager.host.check_integrity(
        [*(s.host_pages for s in alive), scheduler.batch_builder.host_pages_to_release, moving]
    )
    scheduler.kv_manager.check_sessions()
    slots, free = scheduler.slots, scheduler.batch_slots.free
    occupied = {slot for slot, sequence in enumerate(slots) if sequence is not None}
    assert occupied.isdisjoint(free), (occupied, free)
    assert len(occupied) + len(free) == len(slots)
    assert {s.slot for s in scheduler.running} == occupied
    assert {id(s) for s in alive if s.state is State.RUNNING} == {id(s) for s in scheduler.running}
    by_class = Counter(s.service_class for s in scheduler.running)
    assert scheduler.batch_slots.by_class.as_tuple() == tuple(by_class[c] for c in ServiceClass)
    waiting = [s for s in alive if s.state in (State.WAITING, State.PREEMPTED)]
    in_order = list(scheduler.policy.in_order())
    assert len(waiting) == len(scheduler.waiting) == len(in_order), (waiting, in_order)
    assert set(waiting) == set(in_order)
    for state, counted in ((State.WAITING, scheduler.waiting.new), (State.PREEMPTED, scheduler.waiting.paused)):
        by_class = Counter(s.service_class for s in waiting if s.state is state)
        assert counted.as_tuple() == tuple(by_class[c] for c in ServiceClass)
    suspended = [s for s in alive if s.state is State.SUSPENDED]
    by_class = Counter(s.service_class for s in suspended)
    assert scheduler.changes.suspended.as_tuple() == tuple(by_class[c] for c in ServiceClass)
    assert scheduler.changes.paused_requests == sum(s[0].request.is_paused for s in scheduler.requests.values())
    assert all(s.request.is_paused and s.host_pages == [] and s.num_computed == 0 for s in suspended)
    assert all(s.state in (State.SUSPENDED, State.WAITING_FOR_PROMPT) for s in alive if s.request.is_paused)
    assert all((s.suspension is not None) == (s.state is State.SUSPENDED) for s in alive)
    assert all(s.service_class is s.request.service_class for s in alive)
    assert all(s.page_table == [] for s in alive if s.state is not State.RUNNING)
    assert all((s.phase.state == "running") == (s.state is State.RUNNING) for s in alive)
    if not scheduler.steps_in_flight:
        assert all((s.phase is Phase.DECODE) == (s.num_uncomputed <= 1) for s in scheduler.running)
        assert all(s.num_tokens == len(s.tokens) and s.drafts_in_flight == 0 for s in alive)
    short_of_page = {
        id(s) for s in scheduler.running if len(s.page_table) < s.pages_needed and s.num_tokens < s.max_len
    }
    assert short_of_page <= {id(s) for s in scheduler.needing_page}
