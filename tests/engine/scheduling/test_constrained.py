"""A sequence whose mask is not computed misses the step; all others go on."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from engine.scheduling.constrained import MAX_DRAFT_MASKS
from engine.scheduling.constraint import ConstraintFailure
from engine.scheduling.sequence import Sequence
from engine.scheduling.speculation import Speculation
from engine.types import Phase, Request, ServiceClass, WaitReason
from tests.engine.scheduling.history import STEP_SECONDS, History
from tests.fakes import FakeConstraint


class Constrained(History):
    """A history in which the next arrival may have a constraint."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.constraint: FakeConstraint | None = None
        self.engine.constraints = self  # type: ignore[assignment]

    def prepare(self, request: Request) -> None:
        """Return None: there is nothing to compile."""

    def constraints(self, request: Request) -> dict[int, FakeConstraint]:
        constraint, self.constraint = self.constraint, None
        return {} if constraint is None else {0: constraint}

    def wait_for_masks(self, seconds: float) -> None:
        """Return at once."""

    def wait_for_any_mask(self, seconds: float) -> None:
        """Return at once."""

    def sequence(self, name: str) -> Sequence:
        return self.scheduler.requests[name][0]


@pytest.fixture
def history() -> Constrained:
    return Constrained(slots=4, pages=32)


def arrive_constrained(history: Constrained, **more) -> tuple[str, FakeConstraint]:
    constraint = history.constraint = FakeConstraint()
    return history.arrive([5, 6], 9, **more), constraint


def test_a_row_without_a_mask_misses_steps_and_then_goes_on(history: Constrained):
    """Its wait is reported once with its reason, and its end once."""
    name, constraint = arrive_constrained(history)
    other = history.arrive([7, 8], 9)
    history.step()
    constraint.is_ready = False
    for _ in range(3):
        history.step()
    assert (len(history.texts[name, 0]), len(history.texts[other, 0])) == (1, 4)
    constraint.is_ready = True
    history.step()
    assert len(history.texts[name, 0]) == 2
    decoding = [status.cause for status in history.statuses[name] if status.phase is Phase.DECODE]
    assert decoding == [None, WaitReason.GRAMMAR, None]
    assert history.scheduler.counters["rows_without_mask"] == 3
    assert history.scheduler.waits_for_masks is False
    history.end()


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_slots_and_pages_of_a_row_without_a_mask_are_not_lost(runs_ahead: bool):
    """It is admitted, and later grows by a page, in steps that compute nothing."""
    history = Constrained(slots=4, pages=32, runs_ahead=runs_ahead)
    name, constraint = arrive_constrained(history)
    for length in range(9):
        constraint.is_ready = False
        history.step()
        history.step()
        assert len(history.texts[name, 0]) == length
        constraint.is_ready = True
        history.step()
        if runs_ahead:
            history.step()
    history.end()


def test_the_mask_of_a_prompt_is_prepared_when_it_is_admitted(history: Constrained):
    """Reading the prompt and computing the mask overlap."""
    _, constraint = arrive_constrained(history)
    assert constraint.prepared == 0
    history.step()
    assert constraint.prepared == 2, "one more after the first token"
    history.end()


def test_masks_count_as_service_of_their_tenant(history: Constrained):
    """As many tokens as one row would have generated in that time, also for the mask that ended the answer."""
    name, constraint = arrive_constrained(history, tenant="a")
    other = history.arrive([7, 8], 9, tenant="b")
    constraint.seconds = 10 * STEP_SECONDS
    history.step()
    constraint.seconds = 5 * STEP_SECONDS
    accounts = [history.sequence(each).policy_state.account for each in (name, other)]
    difference = accounts[0].served - accounts[1].served
    assert difference == pytest.approx(2.0 * 10, rel=0.2)
    history.abort(name)
    assert accounts[0].served - accounts[1].served == pytest.approx(difference + 2.0 * 5, rel=0.2)
    assert history.scheduler.counters["mask_microseconds"] == pytest.approx(15e6 * STEP_SECONDS)
    history.end()


class EachConstrained(Constrained):
    """A history in which each choice has a constraint, whose masks have taken some time."""

    def constraints(self, request: Request) -> dict[int, FakeConstraint]:
        constraints = {choice: FakeConstraint() for choice in range(request.n)}
        for constraint in constraints.values():
            constraint.seconds = STEP_SECONDS
        return constraints


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("is_submitted_paused", [False, True])
def test_a_choice_that_was_never_queued_can_end(steps: int, is_submitted_paused: bool):
    """It waits for the prompt, or its request is paused before that is computed."""
    history = EachConstrained(slots=4, pages=32)
    other = history.arrive([7, 8], 9)
    history.step()
    name = history.arrive([5, 6], 9, n=3, is_paused=is_submitted_paused)
    history.may_be_truncated.add((name, 1))
    history.engine.abort(name, 1)
    if not is_submitted_paused:
        history.engine.change(name, is_paused=True, service_class=ServiceClass.STANDARD)
    for _ in range(steps):
        history.step()
    history.abort(name)
    history.end()
    assert len(history.texts[other, 0]) == 9


def test_the_failure_of_a_constraint_ends_its_request_with_its_code(history: Constrained):
    """The row has no allowed token, so the runner reports none."""
    name, constraint = arrive_constrained(history)
    other = history.arrive([7, 8], 9)
    history.step()
    constraint.failure = ConstraintFailure("grammar_too_expensive", "its tokens take too long")
    history.may_be_truncated.add((name, 0))
    history.step()
    assert name not in history.scheduler.requests and other in history.scheduler.requests
    assert history.errors[name] == ("grammar_too_expensive", "its tokens take too long")
    history.end()


class NotingConstraint(FakeConstraint):
    """A constraint that notes how many drafts it may have."""

    def __init__(self, limits: list[int]) -> None:
        super().__init__()
        self._limits = limits

    def prepare_mask(self, proposal: Seq[int] = (), limit: int = 0) -> None:
        self._limits.append(limit)


@pytest.mark.parametrize("sequences", [1, 4, 8, 16, 17])
def test_masks_after_drafts_are_divided_among_sequences(sequences: int):
    """A step waits for masks only a short time, so all of them together have a limit."""
    history = Constrained(slots=sequences, pages=4 * sequences, prefill_chunk=1000)
    scheduler, limits = history.scheduler, list[int]()
    scheduler.speculation = Speculation(scheduler.policy, scheduler.counters, scheduler.kv_manager)
    for _ in range(sequences):
        history.constraint = NotingConstraint(limits)
        history.arrive([5, 6], 12)
    most = 0
    for _ in range(6):
        limits.clear()
        history.step()
        if len(limits) == sequences:
            most = max(most, *limits)
    assert sequences * most <= MAX_DRAFT_MASKS and (most > 0) == (sequences <= MAX_DRAFT_MASKS)


def test_masks_after_drafts_are_for_steps_that_may_have_them():
    """Beside a person other classes have no drafts, and none has beside a prompt. Masks would only delay the step."""
    history = Constrained(slots=2, pages=16, prefill_chunk=1000)
    scheduler, limits = history.scheduler, list[int]()
    scheduler.speculation = Speculation(scheduler.policy, scheduler.counters, scheduler.kv_manager)
    history.constraint = NotingConstraint(limits)
    history.arrive([5, 6], 20, service_class=ServiceClass.BATCH)
    for _ in range(4):
        history.step()
    assert limits[-1] > 0
    history.constraint = None
    history.arrive([7, 8], 6, service_class=ServiceClass.INTERACTIVE)
    limits.clear()
    for _ in range(5):  # the first one has the prompt
        history.step()
    assert limits == [0, 0, 0, 0, 0]
    while len(history.scheduler.running) > 1:
        history.step()
    history.step()
    assert limits[-1] > 0
