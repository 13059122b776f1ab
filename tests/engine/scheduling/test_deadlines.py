"""A deadline is kept, or given up as soon as it cannot be."""

from __future__ import annotations

import gc

import pytest

from engine.scheduling.sequence import Sequence
from engine.types import Cause, EndEvent, FinishReason, Mechanism, ServiceClass
from tests.engine.scheduling.history import STEP, History


def ends_of(history: History, monkeypatch: pytest.MonkeyPatch) -> list[EndEvent]:
    """Every `EndEvent` from now on."""
    seen: list[EndEvent] = []
    step = history.engine.step

    def watched():
        events = step()
        seen.extend(e for e in events if isinstance(e, EndEvent))
        return events

    monkeypatch.setattr(history.engine, "step", watched)
    return seen


def test_what_can_never_be_in_time_is_refused_in_the_next_step(monkeypatch):
    """Thirty tokens in the time of two, with no luck allowed: nothing is computed for it."""
    history = History(slots=1, pages=16)
    ends = ends_of(history, monkeypatch)
    history.arrive([1, 2, 3], 30, deadline=history.now + 2 * STEP)
    history.step()
    assert [(e.finish, e.code, e.param) for e in ends] == [(FinishReason.ERROR, "deadline_exceeded", "deadline_ms")]
    assert "cannot be met" in ends[0].message and "ms are left" in ends[0].message
    assert history.scheduler.load().counters.computed_tokens == 0
    history.end()


def test_who_waits_too_long_is_given_up_before_its_deadline(monkeypatch):
    """Somebody else has the slot; the moment when too little time is left for it is foreseen."""
    history = History(slots=1, pages=16)
    ends = ends_of(history, monkeypatch)
    history.arrive([1, 2, 3], 50)
    history.step()
    deadline = history.now + 40 * STEP
    history.arrive([4, 5, 6], 30, deadline=deadline)
    while not ends:
        history.step()
    assert deadline - 16 * STEP < history.now < deadline - 10 * STEP
    history.end()


def test_who_runs_and_falls_behind_is_cancelled_and_the_others_go_on(monkeypatch):
    """Its slot is free in that very step."""
    history = History(slots=1, pages=16)
    ends = ends_of(history, monkeypatch)
    late = history.arrive([1, 2, 3], 30, deadline=history.now + 25 * STEP)
    other = history.arrive([4, 5, 6], 3)
    for _ in range(5):
        history.step()
    history.now += 12 * STEP  # the machine was held up
    history.step()
    assert [e.request_id for e in ends] == [late]
    assert 0 < len(history.texts[late, 0]) < 30
    history.step()
    assert len(history.texts[other, 0]) >= 1
    assert history.scheduler.load().counters.late == 1
    history.end()


def test_a_request_that_is_late_is_given_up_whole_and_counted_once(monkeypatch):
    """However many answers it asked for: one that cannot be there in time is one too few."""
    history = History(slots=1, pages=16)
    ends = ends_of(history, monkeypatch)
    name = history.arrive([1, 2, 3], 10, n=3, deadline=history.now + 12 * STEP)
    for _ in range(11):
        history.step()
    assert [(e.request_id, e.choice) for e in ends] == [(name, choice) for choice in range(3)]
    assert history.scheduler.load().counters.late == 1
    history.end()


def test_a_deadline_that_is_met_changes_nothing(monkeypatch):
    """Not a word."""
    history = History(slots=2, pages=16)
    ends = ends_of(history, monkeypatch)
    name = history.arrive([1, 2, 3], 10, deadline=history.now + 14 * STEP, n=2)
    for _ in range(14):
        history.step()
    assert ends == []
    assert [len(history.texts[name, choice]) for choice in (0, 1)] == [10, 10]
    history.end()


def test_a_machine_that_was_busy_when_it_was_measured_meets_what_it_can_meet_now(monkeypatch):
    """A step was said to take ten times what steps have taken since."""
    history = History(slots=1, pages=16)
    ends = ends_of(history, monkeypatch)
    launch = history.engine._runner.launch

    def launched(batch):
        history.now += STEP / 10
        return launch(batch)

    monkeypatch.setattr(history.engine._runner, "launch", launched)
    for deadline in (None, None, 10 * STEP):
        history.arrive([1, 2, 3], 40, deadline=deadline and history.now + deadline)
        while history.scheduler.has_work:
            history.engine.step()
    assert ends == []
    assert history.scheduler.load().counters.generated_tokens == 120


@pytest.mark.parametrize("ends", [{"stop": (1,)}, {"has_stop_strings": True}])
def test_an_answer_that_may_stop_early_is_not_given_up_for_what_it_might_say(ends):
    """With a stop token the next one may be the last; with a stop string too, though the engine knows none."""
    history = History(slots=1, pages=16)
    name = history.arrive([1, 2, 3], 30, deadline=history.now + 5 * STEP, **ends)
    for _ in range(4):
        history.step()
    assert len(history.texts[name, 0]) == 4
    history.end()


def test_the_earliest_deadline_goes_first_within_a_class():
    """Those without one come after, and hear why."""
    history = History(slots=1, pages=16)
    history.arrive([9], 3)
    history.step()
    without = history.arrive([1], 1)
    later = history.arrive([2], 1, deadline=history.now + 90.0)
    sooner = history.arrive([3], 1, deadline=history.now + 50.0)
    history.now += 1.0
    history.step()
    assert history.told[without][-1].cause is Cause.DEADLINE
    history.end()
    order = [key[0] for key in history.texts]
    assert order[1:] == [sooner, later, without]


def test_a_deadline_does_not_pass_a_higher_class():
    """Classes first."""
    history = History(slots=1, pages=16)
    history.arrive([9], 3)
    history.step()
    urgent = history.arrive([1], 1, deadline=history.now + 50.0, service_class=ServiceClass.BATCH)
    standard = history.arrive([2], 1)
    history.end()
    assert list(history.texts)[1:] == [(standard, 0), (urgent, 0)]


def test_who_has_ended_is_not_kept_until_its_deadline():
    """It may be weeks away."""
    history = History(slots=4, pages=64)
    for _ in range(20):
        for _ in range(20):
            history.arrive([1, 2, 3], 1, deadline=1e9)
        history.end()
    kept = sum(type(one) is Sequence for one in gc.get_objects())
    assert kept < 150


def test_who_was_paused_again_and_again_is_not_kept_until_its_deadline():
    """Each pause looks anew at when it would be too late, and leaves one look at it behind."""
    history = History(slots=1, pages=16)
    for _ in range(200):
        history.arrive([1, 2, 3], 4, deadline=1e9)
        for _ in range(3):
            history.step()
            history.pause(0, Mechanism.RECOMPUTE)
        history.end()
    kept = sum(type(one) is Sequence for one in gc.get_objects())
    assert kept < 150
