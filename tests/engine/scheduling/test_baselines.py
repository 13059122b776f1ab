"""The baselines do what the systems they are named after do, so that a comparison compares with them."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.scheduling.policies import POLICIES
from engine.types import Cause, Mechanism, ServiceClass
from tests.engine.scheduling.history import STEP, History

I, S, B = ServiceClass.INTERACTIVE, ServiceClass.STANDARD, ServiceClass.BATCH  # noqa: E741


def running(history: History) -> list[str]:
    return [s.request.id for s in history.scheduler.running]


def pauses(history: History) -> int:
    return sum(map(history.scheduler.load().counters.paused_by, Mechanism))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_everybody(policy: str):
    """Two slots, few pages, all classes."""
    history = History(slots=2, pages=6, scheduling_policy=policy)
    for number in range(12):
        history.arrive(list(range(number, number + 5)), 6, service_class=list(ServiceClass)[number % 3])
        history.step()
    history.end()


def test_orca_serves_in_order_of_arrival_whatever_the_class():
    """And sets memory aside for the longest answer, so that nobody is ever paused."""
    history = History(slots=4, pages=6, scheduling_policy="orca")
    for service_class in (B, S, I):
        history.arrive([1, 2, 3], 9, service_class=service_class)  # three pages in the end, one at first
    history.step()
    assert running(history) == ["r1", "r2"]
    assert history.told["r3"][-1].cause is Cause.PAGES
    history.end()
    assert pauses(history) == 0


def test_vllm_lets_a_person_wait_for_a_slot_although_batch_work_has_them_all():
    """Its priorities order the queue; they pause nobody for a slot."""
    history = History(slots=1, pages=9, scheduling_policy="vllm")
    history.arrive([1], 8, service_class=B)
    history.step()
    late = history.arrive([2], 2, service_class=B)
    person = history.arrive([3], 2, service_class=I)
    history.step()
    assert running(history) == ["r1"]
    history.end()
    assert list(history.texts).index((person, 0)) < list(history.texts).index((late, 0))


def test_vllm_pauses_the_last_by_priority_when_memory_runs_short_and_swaps_nobody():
    """It is dropped and computed again."""
    history = History(slots=3, pages=5, scheduling_policy="vllm", enable_prefix_caching=False)
    history.arrive([1, 2, 3], 9, service_class=B)
    history.arrive([4, 5, 6], 9, service_class=I)
    for _ in range(7):
        history.step()
    assert running(history) == ["r2"]
    assert history.told["r1"][-1].mechanism is Mechanism.RECOMPUTE
    history.end()


def test_vllm_lets_nobody_in_in_the_step_in_which_memory_ran_short():
    """The one that was paused is not let in again at once, nor anybody else."""
    history = History(slots=4, pages=5, scheduling_policy="vllm", enable_prefix_caching=False)
    history.arrive([1, 2, 3], 12, service_class=I)
    history.arrive([4, 5, 6], 12, service_class=I)
    while not pauses(history):
        small = history.arrive([9], 1, service_class=I) if len(history.texts["r1", 0]) >= 5 else ""
        before = set(running(history))
        history.step()
    assert (small and small not in history.told) or history.told[small][-1].state == "queued"
    assert set(running(history)) < before
    history.end()


def test_sglang_pauses_a_lower_priority_for_who_waits():
    """As its priority scheduling does beyond the threshold."""
    history = History(slots=1, pages=9, scheduling_policy="sglang")
    history.arrive([1], 8, service_class=B)
    history.step()
    history.arrive([2], 2, service_class=I)
    history.step()
    assert running(history) == ["r2"]
    history.end()


def test_fastserve_lets_a_short_newcomer_take_the_slot_of_one_that_has_sunk():
    """A request sinks a level when it has used its quantum up; who is new is above it."""
    history = History(slots=1, pages=9, scheduling_policy="fastserve")
    history.arrive([1], 20)
    for _ in range(5):
        history.step()
    history.arrive([2], 1)
    history.step()
    assert running(history) == ["r2"] or ("r2", 0) in history.ends
    history.end()


def test_fastserve_lets_a_long_prompt_join_below_the_top():
    """The level whose quantum its prompt takes: it is not above one that has run for a while."""
    history = History(slots=1, pages=16, scheduling_policy="fastserve")
    history.arrive([1], 20)
    for _ in range(2):
        history.step()
    history.arrive(list(range(30)), 1)
    history.step()
    assert running(history) == ["r1"]
    history.end()


@pytest.mark.parametrize("batching", ["static", "dynamic"])
def test_a_batch_waits_until_it_is_full_or_its_time_is_up(batching: str):
    """Then it starts with those that came, and they are told what they waited for."""
    history = History(slots=4, pages=16, batching=batching, batch_size=3, batch_timeout=1.0)
    history.arrive([1], 4)
    history.arrive([2], 4)
    history.step()
    assert running(history) == []
    assert history.told["r1"][-1].cause is Cause.BATCH
    assert history.engine.seconds_to_step() == pytest.approx(1.0 - STEP)
    history.now += 1.0
    history.step()
    assert running(history) == ["r1", "r2"]
    history.arrive([3], 4)
    history.now += 2.0
    history.step()
    assert running(history) == ["r1", "r2"], "nobody joins a batch that runs"
    history.end()


def test_a_full_batch_starts_at_once():
    """However long it might wait; the fourth is for the next one."""
    history = History(slots=4, pages=16, batching="dynamic", batch_size=3, batch_timeout=60.0)
    for number in range(4):
        history.arrive([number], 4)
    history.step()
    assert running(history) == ["r1", "r2", "r3"]
    history.end()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"batch_size": 4}, "batch_size"),
        ({"batch_timeout": 1.0}, "batch_timeout"),
        ({"batching": "static", "batch_size": 64}, "batch_size"),
        ({"batching": "static", "batch_timeout": float("inf")}, "batch_timeout"),
        ({"batching": "static", "batch_timeout": float("nan")}, "batch_timeout"),
    ],
)
def test_what_belongs_to_no_batch_is_refused_by_name(options, names: str):
    """Continuous batching waits for nobody, and no batch for ever."""
    with pytest.raises(ConfigError, match=names):
        EngineConfig(model="x", **options).validate()
