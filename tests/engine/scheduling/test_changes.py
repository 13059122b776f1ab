"""Requests that their clients pause, resume and move to other classes, while the engine computes others."""

from __future__ import annotations

import cProfile
import math
import random

import pytest

from engine.scheduling.integrity import check_integrity
from engine.scheduling.policies import POLICIES
from engine.scheduling.sequence import State
from engine.types import FinishReason, Phase, PreemptionMode, ServiceClass, WaitReason
from tests.engine.scheduling.history import STEP_SECONDS, History

INTERACTIVE, STANDARD, BATCH = ServiceClass


def pause(history: History, name: str, service_class: ServiceClass = STANDARD) -> None:
    history.engine.change(name, is_paused=True, service_class=service_class)
    check_integrity(history.scheduler)


def resume(history: History, name: str, service_class: ServiceClass = STANDARD) -> None:
    history.engine.change(name, is_paused=False, service_class=service_class)
    check_integrity(history.scheduler)


def running(history: History) -> list[str]:
    return [sequence.request.id for sequence in history.scheduler.running]


def phases(history: History, name: str) -> list[tuple[Phase, WaitReason | None]]:
    return [(status.phase, status.cause) for status in history.statuses[name]]


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("after", range(1, 9))
def test_a_request_goes_on_at_the_same_token_after_a_pause_at_any_step(after: int, runs_ahead: bool):
    """`History.end` compares its text with that of a run alone, and that of the request beside it."""
    history = History(slots=2, pages=12, runs_ahead=runs_ahead)
    paused, other = history.arrive([1] * 9, 6), history.arrive([2] * 5, 12)
    for _ in range(after):
        history.step()
    pause(history, paused)
    for _ in range(3):
        history.step()
    assert paused not in running(history) and other in {*running(history), *(name for name, _ in history.ends)}
    resume(history, paused)
    history.end()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(5))
def test_each_policy_takes_pauses_and_moves_in_any_order(policy: str, seed: int):
    """Requests of all classes are changed at random, while others arrive, and each has its text in the end."""
    drawn = random.Random(seed)
    history = History(slots=3, pages=16, scheduling_policy=policy, runs_ahead=drawn.random() < 0.5)
    for _ in range(80):
        if drawn.random() < 0.3:
            prompt = [drawn.randrange(3)] * drawn.randint(1, 12)
            history.arrive(prompt, drawn.randint(1, 9), service_class=drawn.choice(list(ServiceClass)))
        if history.scheduler.requests and drawn.random() < 0.5:
            name = drawn.choice(list(history.scheduler.requests))
            (pause if drawn.random() < 0.5 else resume)(history, name, drawn.choice(list(ServiceClass)))
        history.step()
    for name in list(history.scheduler.requests):
        resume(history, name)
    history.end()


def test_a_scheduler_with_thousands_of_paused_requests_decides_as_without_them():
    """They are looked at in no step, for which a function would be called for each of them."""
    calls = []
    for paused in (0, 3000):
        history = History(slots=2, pages=30)
        for _ in range(paused):
            history.engine.change(history.arrive([5] * 3, 4), is_paused=True, service_class=BATCH)
        history.step()
        history.arrive([1] * 5, 20)
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(20):
            history.engine.step()
        profile.disable()
        calls.append(sum(entry.callcount for entry in profile.getstats()))
    assert abs(calls[0] - calls[1]) < 100  # a collection of garbage has calls too


def test_the_slot_of_a_paused_request_goes_to_another_one_in_the_next_step():
    history = History(slots=1, pages=12)
    paused = history.arrive([1] * 5, 20)
    history.step()
    waiting = history.arrive([2] * 5, 4)
    pause(history, paused)
    history.step()
    assert running(history) == [waiting]
    resume(history, paused)
    history.end()


def test_paused_requests_wait_for_nothing_and_are_counted_apart():
    """They are in no queue, take no memory of the device or the host, and an engine that has no others sleeps."""
    history = History(slots=1, pages=20)
    names = [history.arrive([number] * 5, 8) for number in range(4)]
    for _ in range(3):
        history.step()
    history.pause(0, PreemptionMode.SWAP)
    assert history.scheduler.kv_manager.host.used
    for name in names:
        pause(history, name)
        pause(history, name)  # changes nothing
    load = history.scheduler.load()
    assert load.suspended == (0, 4, 0) and not any((*load.running, *load.waiting, *load.paused))
    assert (load.pages.held, load.pages.swapped) == (0, 0)
    history.step()
    assert history.scheduler.next_step_at(history.now) == math.inf
    for name in names:
        resume(history, name)
    history.end()


def test_a_paused_request_is_reported_as_paused_by_its_client_and_then_as_queued():
    history = History(slots=1, pages=12)
    name = history.arrive([1] * 3, 6)
    for _ in range(2):
        history.step()
    pause(history, name)
    history.step()
    resume(history, name)
    history.end()
    client, queued, running_again = phases(history, name)[2:5]
    assert client == (Phase.PAUSED, WaitReason.CLIENT)
    assert (queued[0], running_again[0].state) == (Phase.QUEUED, "running")
    assert history.statuses[name][2].mechanism is None


def test_the_choices_of_a_request_pause_together_also_those_that_wait_for_the_prompt():
    history = History(slots=3, pages=20, max_num_batched_tokens=4)
    name = history.arrive([1] * 9, 6, n=3)
    history.step()
    pause(history, name)
    states = [sequence.state for sequence in history.scheduler.requests[name]]
    assert states == [State.SUSPENDED, State.WAITING_FOR_PROMPT, State.WAITING_FOR_PROMPT]
    for _ in range(3):
        history.step()
    assert not running(history)
    resume(history, name)
    for _ in range(4):
        history.step()
    assert len(running(history)) == 3
    pause(history, name)
    assert history.scheduler.load().suspended == (0, 3, 0)
    resume(history, name)
    history.end()


def test_choices_whose_lead_ends_during_a_pause_stay_paused():
    history = History(slots=3, pages=20, max_num_batched_tokens=4)
    name = history.arrive([1] * 9, 6, n=2)
    history.step()
    pause(history, name)
    history.may_be_truncated.add((name, 0))
    history.engine.abort(name, 0)
    history.step()
    assert [sequence.state for sequence in history.scheduler.requests[name]] == [State.SUSPENDED]
    resume(history, name)
    history.end()


def test_a_deadline_passes_also_during_a_pause():
    history = History(slots=1, pages=12)
    name = history.arrive([1] * 5, 8, deadline=1.0)
    history.step()
    pause(history, name)
    history.step()
    assert history.scheduler.next_step_at(history.now) <= 1.0
    history.now = 1.0
    history.end()
    assert history.ends[name, 0] is FinishReason.ERROR and history.errors[name][0] == "deadline_exceeded"


def test_a_pause_does_not_count_as_a_wait():
    """A request that was paused for long is not overdue when it is resumed."""
    history = History(slots=1, pages=20, max_wait_standard=1.0)
    person = history.arrive([2] * 5, 40, service_class=INTERACTIVE)
    paused = history.arrive([1] * 5, 4)
    history.step()
    pause(history, paused)
    history.now += 100.0
    resume(history, paused)
    history.step()
    [sequence] = history.scheduler.requests[paused]
    assert history.now - sequence.waiting_since < 1.0 and running(history) == [person]
    history.end()


def test_a_resumed_request_takes_its_former_place_among_those_of_its_tenant():
    history = History(slots=1, pages=20)
    first, second, third = (history.arrive([number] * 5, 3) for number in range(3))
    history.step()
    pause(history, second)
    resume(history, second)
    history.step()
    assert [s.request.id for s in history.scheduler.policy.in_order()] == [second, third] and running(history) == [
        first
    ]
    history.end()


def test_a_running_answer_that_becomes_flex_gives_way_to_people_at_once():
    history = History(slots=1, pages=20)
    answer = history.arrive([1] * 5, 20)
    history.step()
    person = history.arrive([2] * 5, 3)
    history.step()
    assert running(history) == [answer]
    history.engine.change(answer, is_paused=False, service_class=BATCH)
    check_integrity(history.scheduler)
    assert history.scheduler.load().running == (0, 0, 1)
    history.step()
    assert running(history) == [person]
    assert history.statuses[answer][-1].preempted_by is STANDARD
    history.end()


def test_a_waiting_request_that_becomes_priority_is_served_as_one_of_people():
    history = History(slots=1, pages=20)
    batch = history.arrive([1] * 5, 20, service_class=BATCH)
    history.step()
    first = history.arrive([2] * 5, 3, service_class=BATCH)
    second = history.arrive([3] * 5, 3, service_class=BATCH)
    history.step()
    history.engine.change(second, is_paused=False, service_class=INTERACTIVE)
    assert history.scheduler.load().waiting == (1, 0, 1)
    history.step()
    assert running(history) == [second] and {batch, first} == {
        s.request.id for s in history.scheduler.policy.in_order()
    }
    history.end()


def test_a_class_changes_during_a_pause_and_a_preemption():
    history = History(slots=2, pages=20)
    paused, preempted = history.arrive([1] * 5, 9), history.arrive([2] * 5, 9)
    history.step()
    history.step()
    pause(history, paused, BATCH)
    history.pause(0, PreemptionMode.SWAP)
    history.engine.change(preempted, is_paused=False, service_class=INTERACTIVE)
    check_integrity(history.scheduler)
    load = history.scheduler.load()
    assert load.suspended == (0, 0, 1) and load.paused == (1, 0, 0)
    resume(history, paused, BATCH)
    history.end()


def test_a_tenant_gains_no_share_by_moving_its_requests_between_classes():
    """Its account in the class that it joins starts level with the others."""
    history = History(slots=2, pages=30)
    old = history.arrive([1] * 5, 20, tenant="old", service_class=BATCH)
    for _ in range(8):
        history.step()
    waiting = [history.arrive([2] * 5, 4, tenant="old", service_class=BATCH) for _ in range(2)]
    newcomer = history.arrive([3] * 5, 20, tenant="new")
    history.step()
    history.engine.change(newcomer, is_paused=False, service_class=BATCH)
    queue = history.scheduler.policy._queues[BATCH]
    accounts = {each.request.tenant: queue.account(each) for each in history.scheduler.running}
    assert accounts["new"].served >= min(account.served for account in accounts.values()) > 0
    assert old and waiting
    history.end()


def test_a_tenant_is_charged_for_what_its_pauses_make_the_engine_compute_again():
    """Without a prefix cache, all of the context; a preemption by the engine costs it nothing."""
    history = History(slots=1, pages=20, enable_prefix_caching=False)
    name = history.arrive([1] * 9, 20)
    for _ in range(4):
        history.step()
    [sequence] = history.scheduler.requests[name]
    account = sequence.policy_state.account
    length, before = len(sequence.tokens), account.served
    history.pause(0, PreemptionMode.RECOMPUTE)
    history.step()
    assert account.served - before <= 2
    pause(history, name)
    resume(history, name)
    history.step()
    assert account.served - before >= length - 1
    history.end()


def test_pausing_and_resuming_again_and_again_leaves_no_memory_behind():
    history = History(slots=1, pages=20)
    running_one, name = history.arrive([1] * 5, 20), history.arrive([2] * 5, 3, service_class=BATCH)
    history.step()
    for _ in range(2000):
        pause(history, name, BATCH)
        resume(history, name, BATCH)
        history.now += STEP_SECONDS / 100
    policy = history.scheduler.policy
    assert len(policy._alarms[BATCH]) < 100 and len(policy._queues[BATCH]._heap) < 10
    history.step()
    assert running(history) == [running_one]
    history.end()


def test_a_trial_can_be_paused_and_lets_others_go_on():
    history = History(slots=2, pages=20)
    trial = history.arrive([1] * 5, 20, is_trial=True)
    history.step()
    assert history.engine.trial == trial
    pause(history, trial)
    assert history.engine.trial == ""
    other = history.arrive([2] * 5, 4)
    history.step()
    assert running(history) == [other]
    resume(history, trial)
    history.end()
