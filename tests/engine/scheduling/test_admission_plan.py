"""Admission plans are values: policies make them from a view of slots and pages, without a scheduler."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.scheduling.admission import Admission, AdmissionPlan, AdmissionView, Preemption, Shortage
from engine.scheduling.batch_builder import BatchBuilder
from engine.scheduling.costs import Costs
from engine.scheduling.counters import CumulativeCounters
from engine.scheduling.kv_manager import KVManager
from engine.scheduling.policies import POLICIES, make_policy
from engine.scheduling.sequence import Sequence, State
from engine.types import PreemptionMode, Request, SamplingParams, ServiceClass, WaitReason
from tests.profiles import examples

I, S, B = ServiceClass.INTERACTIVE, ServiceClass.STANDARD, ServiceClass.BATCH  # noqa: E741
PAGE_SIZE, MAX_LEN = 4, 64
LOWEST = "of the lowest class that was running, pausing it cost the least"


class Situation:
    """Policy, pages and sequences of one moment; plans are applied to pages and lists only."""

    def __init__(self, *, slots=4, pages=32, host=32, swap_speed=1e9, **options) -> None:
        options = {"page_size": PAGE_SIZE, "enable_prefix_caching": False, "min_share": 1} | options
        config = EngineConfig(model="none", max_num_seqs=slots, **options).validate()
        self.policy = make_policy(config, Costs(swap_speed, 100.0))
        self.moves = BatchBuilder()
        self.pages = KVManager(config, self.moves, CumulativeCounters(), pages, host)
        self.shares_prompts = config.enable_prefix_caching
        self.slots = slots
        self.running: list[Sequence] = []
        self.sequences: list[Sequence] = []

    def wait(self, service_class: ServiceClass, length: int = 6, tenant: str = "") -> Sequence:
        """Queue a sequence of `length` tokens; with a prefix cache, the prompts of a tenant share their beginning."""
        number = len(self.sequences)
        prompt = (ord(tenant or "-") if self.shares_prompts else number,) * length
        sampling = SamplingParams(max_tokens=MAX_LEN - length)
        request = Request(id=str(number), prompt=prompt, sampling=sampling, service_class=service_class, tenant=tenant)
        self.sequences.append(Sequence(request, 0, number, 0.0, PAGE_SIZE, MAX_LEN))
        self.policy.push(self.sequences[-1])
        return self.sequences[-1]

    def run(self, service_class: ServiceClass, length: int = 6, tenant: str = "") -> Sequence | None:
        """Start a sequence if it fits; its tokens but the last are computed."""
        sequence = self.wait(service_class, length, tenant)
        reused = self.pages.reusable_pages(sequence, [])
        if self.pages.pages_short(sequence, reused) > 0:
            return None
        self._start(Admission(sequence, reused))
        sequence.num_computed = length - 1
        self.pages.publish(sequence, length - 1)
        return sequence

    @property
    def view(self) -> AdmissionView:
        return AdmissionView(self.pages, tuple(self.running), has_free_slot=len(self.running) < self.slots)

    def plan(self, now: float = 0.0) -> AdmissionPlan:
        return self.policy.plan_admission(self.view, now)

    def apply(self, plan: AdmissionPlan) -> None:
        for preemption in plan.preemptions:
            victim = preemption.victim
            if preemption.mode is PreemptionMode.SWAP:
                self.pages.swap_out(victim)
            else:
                victim.num_computed = 0
            self.pages.release(victim)
            self.running.remove(victim)
            self.policy.slot_released(victim)
            victim.slot, victim.state = None, State.PREEMPTED
            self.policy.push(victim)
        if plan.admission is not None:
            self._start(plan.admission)

    def _start(self, admission: Admission) -> None:
        sequence = admission.sequence
        self.policy.remove(sequence)
        self.pages.allocate(sequence, admission.reused_pages)
        sequence.state = State.RUNNING
        sequence.slot = min(set(range(self.slots)) - {s.slot for s in self.running})
        self.running.append(sequence)
        self.running.sort(key=self.policy.service_order)
        self.policy.slot_taken(admission, len(sequence.tokens), is_resumed=False)


def test_an_interactive_request_takes_the_slot_of_the_latest_batch_request():
    """The plan names the victim, the mode and the reason; the slots of standard and older batch requests are kept."""
    now = Situation(slots=3)
    now.run(S)
    now.run(B)
    latest = now.run(B)
    person = now.wait(I)
    preemption = Preemption(latest, PreemptionMode.SWAP, LOWEST, person)
    assert now.plan() == AdmissionPlan((), (preemption,), Admission(person, []))


def test_a_plan_preempts_until_the_pages_suffice():
    """Each preemption frees two pages; four more are needed beyond the two that are free."""
    now = Situation(slots=8, pages=10)
    batch = [now.run(B) for _ in range(4)]
    person = now.wait(I, length=24)
    plan = now.plan()
    assert [preemption.victim for preemption in plan.preemptions] == batch[:1:-1]
    assert plan.admission == Admission(person, [])


def test_a_plan_counts_the_host_pages_that_its_own_preemptions_take():
    """Host memory has room for one of two victims, so the other one is recomputed."""
    now = Situation(slots=2, pages=4, host=3)
    for _ in range(2):
        now.run(B)
    now.wait(I, length=16)
    assert [preemption.mode for preemption in now.plan().preemptions] == [
        PreemptionMode.SWAP,
        PreemptionMode.RECOMPUTE,
    ]


def test_a_request_that_would_not_fit_even_then_preempts_none():
    """The plan reports the missing pages."""
    now = Situation(slots=4, pages=8)
    now.run(S, length=20)
    now.run(B)
    large = now.wait(S, length=24)
    assert now.plan() == AdmissionPlan((Shortage(large, WaitReason.PAGES),))


def test_a_batch_request_waits_for_a_slot():
    """It preempts no other batch request."""
    now = Situation(slots=1)
    now.run(B)
    waiting = now.wait(B)
    assert now.plan() == AdmissionPlan((Shortage(waiting, WaitReason.SLOTS),))


def test_a_complete_batch_admits_no_further_request():
    """The view says so, and the plan reports it."""
    now = Situation()
    waiting = now.wait(S)
    view = AdmissionView(now.pages, (), has_free_slot=True, is_closed=True)
    assert now.policy.plan_admission(view, 0.0) == AdmissionPlan((Shortage(waiting, WaitReason.BATCH),))


@pytest.mark.parametrize(("at", "passes"), [(15.0, True), (25.0, False)])
def test_an_overdue_request_without_pages_lets_others_pass_until_twice_its_bound(at: float, passes: bool):
    """One plan reports its shortage and admits the interactive request."""
    now = Situation(slots=4, pages=8, max_wait_batch=10.0)
    now.run(I, length=16)
    overdue, person = now.wait(B, length=24), now.wait(I, length=4)
    now.policy.begin_step(at)
    shortage = Shortage(overdue, WaitReason.PAGES)
    assert now.plan(at) == AdmissionPlan((shortage,), (), Admission(person, []) if passes else None)


def test_an_overdue_request_is_admitted_with_a_guarantee():
    """It preempts a request of its own class and keeps its slot for its minimum share."""
    now = Situation(slots=1, max_wait_batch=10.0)
    running, overdue = now.run(B), now.wait(B)
    now.policy.begin_step(11.0)
    plan = now.plan(11.0)
    assert plan.admission == Admission(overdue, [], is_guaranteed=True)
    assert [preemption.victim for preemption in plan.preemptions] == [running]
    now.apply(plan)
    now.wait(I)
    assert now.plan(11.0).admission is None, "guaranteed"


@pytest.mark.parametrize("policy", POLICIES)
def test_an_idle_engine_admits_nothing(policy: str):
    """The plan is empty."""
    assert Situation(scheduling_policy=policy).plan() == AdmissionPlan()


LENGTHS = st.integers(1, 24)
ARRIVALS = st.lists(st.tuples(st.sampled_from(ServiceClass), LENGTHS, st.sampled_from(["a", "b"])), max_size=6)


@settings(max_examples=examples(300))
@given(
    policy=st.sampled_from(list(POLICIES)),
    slots=st.integers(1, 5),
    pages=st.integers(6, 24),
    host=st.sampled_from([0, 3, 20]),
    caching=st.booleans(),
    swap_speed=st.sampled_from([1.0, 1e9]),
    running=ARRIVALS,
    waiting=ARRIVALS,
    seconds=st.sampled_from([0.0, 5.0, 50.0]),
)
def test_applying_any_plan_keeps_every_page_accounted_for(
    policy, slots, pages, host, caching, swap_speed, running, waiting, seconds
):
    """free + cached + held == total after each plan, a plan is repeatable, and what it admits has all its pages."""
    now = Situation(
        slots=slots,
        pages=pages,
        host=host,
        swap_speed=swap_speed,
        scheduling_policy=policy,
        enable_prefix_caching=caching,
        max_wait_standard=10.0,
        max_wait_batch=20.0,
    )
    for service_class, length, tenant in running[:slots]:
        now.run(service_class, length, tenant)
    for service_class, length, tenant in waiting:
        now.wait(service_class, length, tenant)
    now.policy.begin_step(seconds)
    for _ in range(20):
        plan = now.plan(seconds)
        assert now.plan(seconds) == plan
        now.apply(plan)
        pool = now.pages.pool
        assert pool.free + pool.cached + pool.held == pool.total
        pool.check_integrity(s.page_table for s in now.sequences)
        now.pages.host.check_integrity([*(s.host_pages for s in now.sequences), now.moves.host_pages_to_release])
        assert len(now.running) <= slots
        if plan.admission is None:
            assert not plan.preemptions
            return
        assert len(plan.admission.sequence.page_table) == plan.admission.sequence.pages_needed
    raise AssertionError("plans go round in circles")
