"""A deadline is met, or the request is cancelled as soon as it cannot be."""

from __future__ import annotations

import gc

import pytest

from engine.scheduling.sequence import Sequence
from engine.types import EndEvent, FinishReason, PreemptionMode, ServiceClass, WaitReason
from tests.engine.scheduling.history import STEP_SECONDS, History


def collect_ends(history: History, monkeypatch: pytest.MonkeyPatch) -> list[EndEvent]:
    """Return a list that collects every `EndEvent` from now on."""
    seen: list[EndEvent] = []
    step = history.engine.step

    def watched():
        events = step()
        seen.extend(e for e in events if isinstance(e, EndEvent))
        return events

    monkeypatch.setattr(history.engine, "step", watched)
    return seen


def test_a_request_that_can_never_be_in_time_is_refused_in_the_next_step(monkeypatch):
    """Thirty tokens in the time of two are refused before anything is computed."""
    history = History(slots=1, pages=16)
    ends = collect_ends(history, monkeypatch)
    history.arrive([1, 2, 3], 30, deadline=history.now + 2 * STEP_SECONDS)
    history.step()
    assert [(e.finish, e.code, e.param) for e in ends] == [(FinishReason.ERROR, "deadline_exceeded", "deadline_ms")]
    assert "cannot be met" in ends[0].message and "ms are left" in ends[0].message
    assert history.scheduler.load().counters.computed_tokens == 0
    history.end()


def test_a_request_that_waits_too_long_is_cancelled_before_its_deadline(monkeypatch):
    """While another request has the slot, the moment when too little time is left is predicted."""
    history = History(slots=1, pages=16)
    ends = collect_ends(history, monkeypatch)
    history.arrive([1, 2, 3], 50)
    history.step()
    deadline = history.now + 40 * STEP_SECONDS
    history.arrive([4, 5, 6], 30, deadline=deadline)
    while not ends:
        history.step()
    assert deadline - 16 * STEP_SECONDS < history.now < deadline - 10 * STEP_SECONDS
    history.end()


def test_a_running_request_that_falls_behind_is_cancelled_and_others_continue(monkeypatch):
    """Its slot is free in the same step."""
    history = History(slots=1, pages=16)
    ends = collect_ends(history, monkeypatch)
    late = history.arrive([1, 2, 3], 30, deadline=history.now + 25 * STEP_SECONDS)
    other = history.arrive([4, 5, 6], 3)
    for _ in range(5):
        history.step()
    history.now += 12 * STEP_SECONDS  # the machine was delayed
    history.step()
    assert [e.request_id for e in ends] == [late]
    assert 0 < len(history.texts[late, 0]) < 30
    history.step()
    assert len(history.texts[other, 0]) >= 1
    assert history.scheduler.load().counters.late == 1
    history.end()


def test_a_late_request_is_cancelled_whole_and_counted_once(monkeypatch):
    """A request with several choices is cancelled whole if one of them would be late."""
    history = History(slots=1, pages=16)
    ends = collect_ends(history, monkeypatch)
    name = history.arrive([1, 2, 3], 10, n=3, deadline=history.now + 12 * STEP_SECONDS)
    for _ in range(11):
        history.step()
    assert [(e.request_id, e.choice) for e in ends] == [(name, choice) for choice in range(3)]
    assert history.scheduler.load().counters.late == 1
    history.end()


def test_a_deadline_that_is_met_changes_nothing(monkeypatch):
    """No end event is sent."""
    history = History(slots=2, pages=16)
    ends = collect_ends(history, monkeypatch)
    name = history.arrive([1, 2, 3], 10, deadline=history.now + 14 * STEP_SECONDS, n=2)
    for _ in range(14):
        history.step()
    assert ends == []
    assert [len(history.texts[name, choice]) for choice in (0, 1)] == [10, 10]
    history.end()


def test_an_estimate_made_on_a_busy_machine_cancels_no_request_later(monkeypatch):
    """The estimate at startup was ten times the step time measured since."""
    history = History(slots=1, pages=16)
    ends = collect_ends(history, monkeypatch)
    launch = history.engine._runner.launch

    def launched(batch):
        history.now += STEP_SECONDS / 10
        return launch(batch)

    monkeypatch.setattr(history.engine._runner, "launch", launched)
    for deadline in (None, None, 10 * STEP_SECONDS):
        history.arrive([1, 2, 3], 40, deadline=deadline and history.now + deadline)
        while history.scheduler.has_work:
            history.engine.step()
    assert ends == []
    assert history.scheduler.load().counters.generated_tokens == 120


@pytest.mark.parametrize("ends", [{"stop": (1,)}, {"has_stop_strings": True}])
def test_an_answer_that_may_stop_early_is_not_cancelled_for_its_maximum_length(ends):
    """With a stop token or stop string the next token may be the last, so the request may still be in time."""
    history = History(slots=1, pages=16)
    name = history.arrive([1, 2, 3], 30, deadline=history.now + 5 * STEP_SECONDS, **ends)
    for _ in range(4):
        history.step()
    assert len(history.texts[name, 0]) == 4
    history.end()


def test_the_earliest_deadline_goes_first_within_a_class():
    """Requests without a deadline follow, and are notified of the cause."""
    history = History(slots=1, pages=16)
    history.arrive([9], 3)
    history.step()
    without = history.arrive([1], 1)
    later = history.arrive([2], 1, deadline=history.now + 90.0)
    sooner = history.arrive([3], 1, deadline=history.now + 50.0)
    history.now += 1.0
    history.step()
    assert history.statuses[without][-1].cause is WaitReason.DEADLINE
    history.end()
    order = [key[0] for key in history.texts]
    assert order[1:] == [sooner, later, without]


def test_a_deadline_does_not_overtake_a_higher_class():
    """Service classes come before deadlines."""
    history = History(slots=1, pages=16)
    history.arrive([9], 3)
    history.step()
    urgent = history.arrive([1], 1, deadline=history.now + 50.0, service_class=ServiceClass.BATCH)
    standard = history.arrive([2], 1)
    history.end()
    assert list(history.texts)[1:] == [(standard, 0), (urgent, 0)]


def num_sequences() -> int:
    """Return the number of sequences of this process, earlier tests' included."""
    gc.collect()
    return sum(type(one) is Sequence for one in gc.get_objects())


def test_an_ended_sequence_is_not_kept_until_its_deadline():
    """Sequences are freed when they end, although their deadline may be weeks away."""
    before = num_sequences()
    history = History(slots=4, pages=64)
    for _ in range(20):
        for _ in range(20):
            history.arrive([1, 2, 3], 1, deadline=1e9)
        history.end()
    assert num_sequences() - before < 150


def test_an_often_preempted_sequence_is_not_kept_until_its_deadline():
    """Each preemption computes the latest start again; its old entry in the queue must not keep the sequence."""
    before = num_sequences()
    history = History(slots=1, pages=16, speculation="off")  # earlier answers would leave too few steps to preempt in
    for _ in range(200):
        history.arrive([1, 2, 3], 4, deadline=1e9)
        for _ in range(3):
            history.step()
            history.pause(0, PreemptionMode.RECOMPUTE)
        history.end()
    assert num_sequences() - before < 150
