"""Trials: one request computed alone in bounded slices, beside others that wait and lose nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.progress import MIN_PROGRESS_TOKENS, has_progressed
from engine.scheduling.batch import Batch
from engine.scheduling.policies import POLICIES
from engine.scheduling.trials import MAX_SLICE_SECONDS, TRIAL_SHARE
from engine.types import Phase, PreemptionMode, ServiceClass, WaitReason
from tests.engine.scheduling.history import STEP_SECONDS, History
from tests.profiles import examples

SLICE_STEPS = round(MAX_SLICE_SECONDS / STEP_SECONDS)


class Recorded(History):
    """History with the requests of each step, which fails if a request that may end the engine is not alone."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.steps: list[set[str]] = []  # requests that each step computes
        self.named: list[str] = []  # trial that was announced before it
        self._launch = self.engine._runner.launch
        self.engine._runner.launch = self.launch

    def launch(self, batch: Batch):
        slots = [*batch.decodes, *(chunk.slot for chunk in batch.chunks)]
        sequences = [self.scheduler.slots[slot] for slot in slots]
        computed = {sequence.request.id for sequence in sequences}
        trials = {name for name in computed if self.is_on_trial(name)}
        in_flight = self.steps[-1] if self.engine._in_flight and self.steps else set()
        if trials or self.engine.trial:
            assert computed <= {self.engine.trial}, "a trial is not alone in its step"
            assert in_flight <= {self.engine.trial}, "another request is in flight beside a trial"
        else:
            assert not {name for name in in_flight if self.is_on_trial(name)}, "a trial is in flight beside a request"
        self.steps.append(computed)
        self.named.append(self.engine.trial)
        return self._launch(batch)

    def is_on_trial(self, name: str) -> bool:
        """Return whether a request has not made the progress that clears it, by its committed tokens alone."""
        choices = self.scheduler.requests.get(name, [])
        tokens = sum(len(self.texts[name, choice]) for choice in range(8) if (name, choice) in self.texts)
        return bool(choices) and choices[0].request.is_trial and not has_progressed(tokens, len(choices))


def causes(history: History, name: str) -> list[tuple[Phase, WaitReason | None]]:
    return [(event.phase, event.cause) for event in history.statuses[name]]


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_others_go_on_where_they_were_after_a_trial(runs_ahead: bool):
    """They keep slots and pages, and their timeline names the trial, also if they arrive meanwhile."""
    history = Recorded(slots=4, pages=40, runs_ahead=runs_ahead)
    old = [history.arrive([1, 2, 3, i], 20) for i in range(2)]
    for _ in range(3):
        history.step()
    held = [history.scheduler.slots[:2], [list(s.page_table) for s in history.scheduler.running]]
    trial = history.arrive([5] * 6, 9, is_trial=True)
    history.step()
    new = history.arrive([6, 7], 5)
    while history.is_on_trial(trial):
        history.step()
        assert [history.scheduler.slots[:2], [list(s.page_table) for s in history.scheduler.running][:2]] == held
    first = history.steps.index({trial})
    alone = [step for step in history.steps if step == {trial}]
    assert history.steps[first : first + len(alone)] == alone, "the trial was interrupted although it was short"
    assert len(history.texts[trial, 0]) >= MIN_PROGRESS_TOKENS
    history.end()
    assert any({trial, *old} <= step for step in history.steps), "after its progress it is an ordinary request"
    for name in old:
        assert (Phase.DECODE, WaitReason.TRIAL) in causes(history, name)
        assert causes(history, name)[-1] == (Phase.ENDED, None)
    assert (Phase.PREFILL, WaitReason.TRIAL) in causes(history, new) or (Phase.DECODE, WaitReason.TRIAL) in causes(
        history, new
    )
    assert history.scheduler.load().counters.trials == 1
    assert history.scheduler.load().counters.recomputed_tokens == 0


def test_a_trial_waits_for_a_slot_like_any_request():
    """It takes no place from a request that its class may not preempt, and holds up none that waits for its slot."""
    history = Recorded(slots=1, pages=12)
    person = history.arrive([1, 2, 3], 12, service_class=ServiceClass.INTERACTIVE)
    history.step()
    trial = history.arrive([4, 5], 9, service_class=ServiceClass.BATCH, is_trial=True)
    while history.steps[-1] == {person}:
        history.step()
    assert (person, 0) in history.ends and history.steps[-1] == {trial}
    late = history.arrive([1, 2, 3], 12, service_class=ServiceClass.INTERACTIVE)
    history.step()
    history.step()
    assert history.statuses[trial][-1].phase is Phase.PAUSED and late in history.steps[-1]
    history.end()


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_the_pause_of_others_is_bounded(runs_ahead: bool):
    """A long trial has slices, and at most a share of the time; the pause is counted. Alone, it has all steps."""
    history = Recorded(
        slots=2, pages=200, runs_ahead=runs_ahead, max_len=800, max_num_batched_tokens=3, prefill_chunk=1
    )
    other = history.arrive([1, 2, 3], 400)
    history.step()
    trial = history.arrive([4] * (2 * SLICE_STEPS), 8, is_trial=True)
    for _ in range(4 * TRIAL_SHARE * SLICE_STEPS):
        history.step()
    runs = "".join("t" if step == {trial} else "o" for step in history.steps if step)
    paused = max(map(len, runs.split("o")))
    assert SLICE_STEPS - 2 <= paused <= SLICE_STEPS + 2
    slowed = runs[: runs.rindex("t") + 1]
    assert runs.count("t") >= 2 * SLICE_STEPS
    assert slowed.count("o") >= (TRIAL_SHARE - 1) * (runs.count("t") - paused) * 0.9
    seconds = history.scheduler.load().counters.trial_pause_microseconds / 1e6
    assert seconds == pytest.approx(runs.count("t") * STEP_SECONDS, rel=0.1)
    history.engine.abort(other)
    history.may_be_truncated.add((other, 0))
    history.arrive([9] * (3 * SLICE_STEPS), 8, is_trial=True)
    history.end()
    assert history.steps[-3 * SLICE_STEPS :] == [history.steps[-1]] * 3 * SLICE_STEPS
    assert history.scheduler.load().counters.trial_pause_microseconds / 1e6 == pytest.approx(seconds, rel=0.1)


def test_tenants_with_trials_take_turns():
    """A tenant with many long trials does not hold up the trial of another one; a tenant's own go in order."""
    history = Recorded(slots=4, pages=400, max_len=800, max_num_batched_tokens=5, prefill_chunk=1)
    flood = [history.arrive([4] * 60, 8, tenant="flood", is_trial=True) for _ in range(3)]
    calm = history.arrive([5] * 4, 8, tenant="calm", is_trial=True)
    while (calm, 0) not in history.ends:
        history.step()
    tried = [name for step in history.steps for name in step]
    assert tried.index(calm) <= SLICE_STEPS + 2 and flood[1] not in tried
    history.end()
    tried = list(dict.fromkeys(name for step in history.steps for name in step))
    assert [name for name in tried if name != calm] == flood


def test_trials_of_a_higher_class_go_first():
    history = Recorded(slots=4, pages=40)
    bulk, person = (
        history.arrive([i], 6, service_class=c, is_trial=True)
        for i, c in enumerate((ServiceClass.BATCH, ServiceClass.INTERACTIVE))
    )
    history.step()
    assert history.steps == [{person}]
    history.end()
    assert {bulk} in history.steps


def test_every_choice_of_a_trial_is_computed_alone():
    """Progress counts for each choice, and the choices share the steps of the trial."""
    history = Recorded(slots=4, pages=40)
    history.arrive([1, 2], 30)
    history.step()
    trial = history.arrive([3, 4], 12, n=3, is_trial=True)
    for _ in range(40):
        history.step()
        if history.engine.trial != trial:
            break
    tokens = [len(history.texts[trial, choice]) for choice in range(3)]
    assert sum(tokens) >= 3 * MIN_PROGRESS_TOKENS and min(tokens) > 0
    history.end()


def test_a_trial_that_ends_lets_others_go_on_in_the_next_step():
    history = Recorded(slots=2, pages=40)
    other = history.arrive([1, 2], 30)
    history.step()
    trial = history.arrive([3] * 9, 12, is_trial=True)
    history.step()
    assert history.steps[-1] == {trial} and history.engine.trial == trial
    history.abort(trial)
    assert history.engine.trial == ""
    history.step()
    assert history.steps[-1] == {other}
    history.end()


@settings(max_examples=examples(300))
@given(st.randoms(use_true_random=False))
def test_trials_change_no_text(rng: random.Random):
    """With any policy and batching mode, and pauses, aborts and arrivals at any step, each trial is alone."""
    slots = rng.randint(1, 4)
    history = Recorded(
        slots=slots,
        pages=rng.randint(3, 12),
        host=rng.choice([0, 3, 12]),
        swap_speed=rng.choice([1.0, 1e9]),
        runs_ahead=rng.random() < 0.5,
        batching=rng.choice(["continuous", "continuous", "static"]),
        scheduling_policy=rng.choice(["carousel", "carousel", *POLICIES]),
        enable_prefix_caching=rng.random() < 0.5,
        prefill_chunk=rng.choice([None, 1]),
        max_num_batched_tokens=slots + rng.randint(1, 8),
    )
    names: list[str] = []
    for _ in range(rng.randint(4, 16)):
        match rng.choice(["arrive", "arrive", "step", "step", "step", "pause", "abort", "wait"]):
            case "arrive":
                names.append(
                    history.arrive(
                        [rng.randint(0, 3) for _ in range(rng.randint(1, 7))],
                        rng.randint(1, 8),
                        service_class=rng.choice(list(ServiceClass)),
                        n=rng.choice([1, 1, 2]),
                        tenant=rng.choice("ab"),
                        is_trial=rng.random() < 0.4,
                    )
                )
            case "step":
                for _ in range(rng.randint(1, 5)):
                    history.step()
            case "pause" if history.scheduler.running:
                history.pause(rng.randrange(len(history.scheduler.running)), rng.choice(list(PreemptionMode)))
            case "abort" if names:
                history.abort(rng.choice(names))
            case "wait":
                history.now += rng.choice([MAX_SLICE_SECONDS, 2.0])
    history.end()
