"""The baseline policies behave like the systems that they are named after."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.scheduling.policies import POLICIES
from engine.types import PreemptionMode, ServiceClass, WaitReason
from tests.engine.scheduling.history import STEP_SECONDS, History

I, S, B = ServiceClass.INTERACTIVE, ServiceClass.STANDARD, ServiceClass.BATCH  # noqa: E741


def running(history: History) -> list[str]:
    return [s.request.id for s in history.scheduler.running]


def num_preemptions(history: History) -> int:
    return sum(map(history.scheduler.load().counters.paused_by, PreemptionMode))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_all_requests(policy: str):
    """All requests finish with two slots, few pages and all classes."""
    history = History(slots=2, pages=6, scheduling_policy=policy)
    for number in range(12):
        history.arrive(list(range(number, number + 5)), 6, service_class=list(ServiceClass)[number % 3])
        history.step()
    history.end()


def test_orca_serves_in_order_of_arrival_across_classes():
    """It reserves memory for the longest answer, so that no request is ever preempted."""
    history = History(slots=4, pages=6, scheduling_policy="orca")
    for service_class in (B, S, I):
        history.arrive([1, 2, 3], 9, service_class=service_class)  # three pages at the end, one at first
    history.step()
    assert running(history) == ["r1", "r2"]
    assert history.statuses["r3"][-1].cause is WaitReason.PAGES
    history.end()
    assert num_preemptions(history) == 0


def test_vllm_lets_an_interactive_request_wait_while_batch_work_has_all_slots():
    """Its priorities order the queue but preempt no request for a slot."""
    history = History(slots=1, pages=9, scheduling_policy="vllm")
    history.arrive([1], 8, service_class=B)
    history.step()
    late = history.arrive([2], 2, service_class=B)
    person = history.arrive([3], 2, service_class=I)
    history.step()
    assert running(history) == ["r1"]
    history.end()
    assert list(history.texts).index((person, 0)) < list(history.texts).index((late, 0))


def test_vllm_preempts_the_lowest_priority_when_memory_runs_short_and_never_swaps():
    """The preempted request is recomputed."""
    history = History(slots=3, pages=5, scheduling_policy="vllm", enable_prefix_caching=False)
    history.arrive([1, 2, 3], 9, service_class=B)
    history.arrive([4, 5, 6], 9, service_class=I)
    for _ in range(7):
        history.step()
    assert running(history) == ["r2"]
    assert history.statuses["r1"][-1].mechanism is PreemptionMode.RECOMPUTE
    history.end()


def test_vllm_admits_no_request_in_a_step_in_which_memory_ran_short():
    """Neither the preempted request nor another one is admitted in that step."""
    history = History(slots=4, pages=5, scheduling_policy="vllm", enable_prefix_caching=False)
    history.arrive([1, 2, 3], 12, service_class=I)
    history.arrive([4, 5, 6], 12, service_class=I)
    while not num_preemptions(history):
        small = history.arrive([9], 1, service_class=I) if len(history.texts["r1", 0]) >= 5 else ""
        before = set(running(history))
        history.step()
    assert (small and small not in history.statuses) or history.statuses[small][-1].state == "queued"
    assert set(running(history)) < before
    history.end()


def test_sglang_preempts_a_lower_priority_for_a_waiting_request():
    """The baseline preempts as SGLang's priority scheduling does beyond its threshold."""
    history = History(slots=1, pages=9, scheduling_policy="sglang")
    history.arrive([1], 8, service_class=B)
    history.step()
    history.arrive([2], 2, service_class=I)
    history.step()
    assert running(history) == ["r2"]
    history.end()


def test_fastserve_gives_a_short_new_request_the_slot_of_a_demoted_one():
    """A request that has used up its quantum sinks a level; a new one is above it."""
    history = History(slots=1, pages=9, scheduling_policy="fastserve")
    history.arrive([1], 20)
    for _ in range(5):
        history.step()
    history.arrive([2], 1)
    history.step()
    assert running(history) == ["r2"] or ("r2", 0) in history.ends
    history.end()


def test_fastserve_queues_a_long_prompt_below_the_top_level():
    """It joins at the level whose quantum covers its prompt, which is not above a request that has run for a while."""
    history = History(slots=1, pages=16, scheduling_policy="fastserve")
    history.arrive([1], 20)
    for _ in range(2):
        history.step()
    history.arrive(list(range(30)), 1)
    history.step()
    assert running(history) == ["r1"]
    history.end()


@pytest.mark.parametrize("batching", ["static", "dynamic"])
def test_a_batch_waits_until_it_is_full_or_its_timeout(batching: str):
    """The batch starts with the requests present, which have been notified of the cause of their wait."""
    history = History(slots=4, pages=16, batching=batching, batch_size=3, batch_timeout=1.0)
    history.arrive([1], 4)
    history.arrive([2], 4)
    history.step()
    assert running(history) == []
    assert history.statuses["r1"][-1].cause is WaitReason.BATCH
    assert history.engine.seconds_to_step() == pytest.approx(1.0 - STEP_SECONDS)
    history.now += 1.0
    history.step()
    assert running(history) == ["r1", "r2"]
    history.arrive([3], 4)
    history.now += 2.0
    history.step()
    assert running(history) == ["r1", "r2"], "no request joins a running batch"
    history.end()


def test_a_full_batch_starts_at_once():
    """A full batch does not wait for its timeout; the fourth request is left for the next one."""
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
def test_an_invalid_batch_option_is_refused_by_name(options, names: str):
    """Continuous batching has no batch options, and a batch has a finite timeout."""
    with pytest.raises(ConfigError, match=names):
        EngineConfig(model="x", **options).validate()
