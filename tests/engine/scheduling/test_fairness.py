"""Tenants of a class take turns by the service that they received."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling import fairness
from engine.scheduling.fairness import MAX_EXAMINED, OUTPUT_WEIGHT, PROMPT_WEIGHT, SLACK_TOKENS, FairQueue
from engine.scheduling.sequence import Sequence
from engine.types import Phase, PreemptionMode, Request, SamplingParams, ServiceClass, WaitReason
from tests.engine.scheduling.history import History
from tests.profiles import examples

B = ServiceClass.BATCH
SLOTS = 4


def sequence(number: int, tenant: str, *, weight: float = 1.0, deadline: float | None = None) -> Sequence:
    request = Request(
        id=str(number),
        prompt=(1, 2, 3),
        sampling=SamplingParams(max_tokens=4),
        tenant=tenant,
        weight=weight,
        deadline=deadline,
    )
    return Sequence(request, 0, number, 0.0, 4, 64)


def make_line() -> FairQueue:
    return FairQueue(lambda s: (s.request.deadline or 1e9, s.arrival), SLOTS)


def served(history: History, tenant: dict[str, str], prompts: dict[str, int]) -> dict[str, float]:
    """Return each tenant's weighted tokens so far: prompts of started requests, and all output."""
    total = dict.fromkeys(tenant.values(), 0.0)
    for (name, _), tokens in history.texts.items():
        total[tenant[name]] += OUTPUT_WEIGHT * len(tokens) + PROMPT_WEIGHT * prompts[name]
    return total


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 4),
    weight=st.sampled_from([1.0, 2.0, 3.0]),
    slack=st.sampled_from([0.0, 30.0, 100.0]),
)
def test_the_service_of_two_backlogged_tenants_differs_by_no_more_than_the_published_bound(seed, slots, weight, slack):
    """The bound is theorem 4.4 of VTC for any lengths: twice the maximum cost of one admission, by weight, plus the
    slack for a tenant with few slots."""
    with patch.object(fairness, "SLACK_TOKENS", slack):
        check_backlogged_tenants(seed, slots, weight, slack)


def check_backlogged_tenants(seed: int, slots: int, weight: float, slack: float) -> None:
    """Compare the service of two tenants with constant backlogs after every step."""
    rng = random.Random(seed)
    history = History(slots=slots, pages=64, enable_prefix_caching=False, max_wait_batch=float("inf"))
    tenant: dict[str, str] = {}
    prompts: dict[str, int] = {}
    for number in range(60):
        for owner in ("a", "b") if number % 2 else ("b", "a"):
            prompt = [rng.randint(0, 9) for _ in range(rng.randint(1, 12 if owner == "a" else 5))]
            weights = {"a": weight, "b": 1.0}
            name = history.arrive(
                prompt,
                rng.randint(1, 10 if owner == "a" else 16),
                service_class=B,
                tenant=owner,
                weight=weights[owner],
            )
            tenant[name], prompts[name] = owner, len(prompt)
    longest_prompt, max_running_tokens = 12, slots * (12 + 16)
    bound = 2 * max(PROMPT_WEIGHT * longest_prompt, OUTPUT_WEIGHT * max_running_tokens) + slack
    while all(sum(tenant[s.request.id] == w for s in history.scheduler.policy.in_order()) > slots for w in "ab"):
        history.step()
        service = served(history, tenant, prompts)
        assert abs(service["a"] / weight - service["b"]) <= bound
    history.end()


def test_a_flood_does_not_keep_another_tenant_waiting():
    """A hundred requests of one tenant are queued before the only one of another, which is next even with one slot."""
    history = History(slots=1, pages=16)
    for _ in range(100):
        history.arrive([1, 2, 3], 4, tenant="flood")
    for _ in range(3):
        history.step()
    name = history.arrive([4, 5], 2, tenant="calm")
    for _ in range(8):
        history.step()
    assert len(history.texts[name, 0]) == 2
    history.end()


def test_a_tenant_below_its_share_of_slots_does_not_wait_for_a_free_slot():
    """A request of the flood is preempted in the next step, until each tenant has exactly two of four slots."""
    history = History(slots=4, pages=64, max_num_batched_tokens=200)
    for number in range(8):
        history.arrive([number], 40, tenant="flood")
    history.step()
    calm = [history.arrive([50 + number], 40, tenant="calm") for number in range(3)]
    history.step()
    assert len(history.texts[calm[0], 0]) == 1
    paused = [e for statuses in history.statuses.values() for e in statuses if e.phase is Phase.PAUSED]
    assert {(e.preempted_by, "more slots than its share" in e.victim_reason) for e in paused} == {
        (ServiceClass.STANDARD, True)
    }
    for _ in range(20):
        history.step()
    assert [s.request.tenant for s in history.scheduler.running].count("calm") == 2
    assert sum(map(history.scheduler.load().counters.paused_by, PreemptionMode)) == 2
    history.end()


@pytest.mark.parametrize(("weight", "slots"), [(1.0, 2), (3.0, 3), (1 / 3, 1)])
def test_a_share_of_the_slots_is_by_weight_and_at_least_one(weight: float, slots: int):
    """The share is of four slots in all."""
    history = History(slots=4, pages=64, max_num_batched_tokens=200)
    for number in range(8):
        history.arrive([number], 40, tenant="flood")
    history.step()
    for number in range(4):
        history.arrive([50 + number], 40, tenant="calm", weight=weight)
    for _ in range(20):
        history.step()
    assert [s.request.tenant for s in history.scheduler.running].count("calm") == slots
    history.end()


def test_a_request_that_waits_for_other_tenants_reports_fairness():
    """The status names fairness: the request came first, but its tenant had more service."""
    history = History(slots=1, pages=16)
    flood = [history.arrive([1, 2, 3], 4, tenant="flood") for _ in range(4)]
    history.step()
    history.arrive([4, 5], 2, tenant="calm")
    history.arrive([4, 5], 2, tenant="calm")
    history.now += 1.0
    history.step()
    assert history.statuses[flood[2]][-1].cause is WaitReason.FAIRNESS
    history.end()


def test_unused_service_is_not_saved_up():
    """A tenant that returns after a while starts level with tenants that waited all along."""
    fair = make_line()
    first = fair.push(sequence(0, "old"))
    fair.push(sequence(1, "busy")).charge(10_000.0)
    fair.remove(fair.head())
    assert first.served == 0.0
    assert fair.push(sequence(2, "old")).served == 10_000.0


def test_a_tenant_of_twice_the_weight_gets_twice_the_turns():
    """Service of a tenant with weight 2 counts half."""
    fair, turns = make_line(), []
    for number in range(60):
        fair.push(sequence(2 * number, "heavy", weight=2.0))
        fair.push(sequence(2 * number + 1, "light"))
    for _ in range(30):
        head = fair.head()
        turns.append(head.request.tenant)
        fair.account(head).charge(10.0)
        fair.remove(head)
    assert turns.count("heavy") == 20


@pytest.mark.parametrize(("ahead", "first"), [(SLACK_TOKENS, "urgent"), (SLACK_TOKENS + 1, "calm")])
def test_a_deadline_goes_first_only_while_its_tenant_is_not_far_ahead(ahead: float, first: str):
    """Otherwise deadlines could be used against other tenants."""
    fair = make_line()
    fair.push(sequence(0, "calm"))
    fair.push(sequence(1, "urgent", deadline=5.0)).charge(ahead)
    assert fair.head().request.tenant == first


@pytest.mark.parametrize(("ahead", "first"), [(SLACK_TOKENS, "calm"), (SLACK_TOKENS + 1, "flood")])
def test_a_tenant_below_its_share_goes_first_only_while_it_is_not_far_ahead(ahead: float, first: str):
    """A tenant below its share need not wait for a flood to catch up with its last request, within the slack only."""
    fair = make_line()
    for number in range(SLOTS):
        running = sequence(number, "flood")
        account = fair.push(running)
        fair.remove(running)
        fair.slot_taken(account)
    fair.push(sequence(SLOTS, "flood"))
    fair.push(sequence(SLOTS + 1, "calm")).charge(ahead)
    assert fair.head().request.tenant == first


def test_a_tenant_s_burst_does_not_wait_for_a_flood_to_catch_up():
    """With a share of two slots, the second of two requests starts in the step after the first, before the flood has
    had as much service."""
    history = History(slots=4, pages=64, max_num_batched_tokens=200)
    for number in range(12):
        history.arrive([number], 40, tenant="flood")
    for _ in range(3):
        history.step()
    calm = [history.arrive([50 + number] * 12, 20, tenant="calm") for number in range(2)]
    for _ in range(3):
        history.step()
    assert all(history.texts[name, 0] for name in calm)
    history.end()


ACTIONS = st.tuples(st.sampled_from("ppprsvc"), st.integers(0, 5), st.integers(1, 50))


@settings(max_examples=examples(300))
@given(actions=st.lists(ACTIONS, max_size=80), slack=st.sampled_from([0.0, 20.0, 200.0]))
def test_the_head_of_the_line_follows_the_rules(actions, slack):
    """The head equals that of a brute-force search: least service first, except for tenants with too few slots, within
    the slack."""
    fair, waiting, running, serial = make_line(), [], [], 0
    for action, tenant, amount in actions:
        if action == "p":
            serial += 1
            waiting.append(sequence(serial, str(tenant), weight=1.0 + tenant % 2))
            fair.push(waiting[-1])
        elif action == "c" and waiting:
            fair.account(waiting[amount % len(waiting)]).charge(float(amount))
        elif action in "rs" and waiting:
            fair.remove(waiting[amount % len(waiting)])
            gone = waiting.pop(amount % len(waiting))
            if action == "s" and len(running) < SLOTS:
                running.append(gone)
                fair.slot_taken(fair.account(gone))
        elif action == "v" and running:
            fair.slot_released(fair.account(running.pop(amount % len(running))))
        with patch.object(fairness, "SLACK_TOKENS", slack):
            head = fair.head()
        assert len(fair) == len(waiting)
        assert sorted(s.arrival for s in fair.in_order()) == sorted(s.arrival for s in waiting)
        assert fair.num_tenants == len({s.request.tenant for s in [*waiting, *running]})
        if not waiting:
            assert head is None
            continue
        weights = {s.request.tenant: s.request.weight for s in [*waiting, *running]}
        least = min(fair.account(s).served for s in waiting)

        def is_below_share(tenant: str, running=tuple(running), weights=weights) -> bool:
            has = sum(s.request.tenant == tenant for s in running)
            return has + 1 <= max(1.0, SLOTS * weights[tenant] / sum(weights.values()))

        below_share = [
            fair.account(s).served
            for s in waiting
            if fair.account(s).served <= least + slack and is_below_share(s.request.tenant)
        ]
        assert fair.account(head).served == (min(below_share) if below_share else least)
        assert is_below_share(head.request.tenant) or not below_share
        assert head.arrival == min(s.arrival for s in waiting if s.request.tenant == head.request.tenant)


def test_weights_that_exceed_float_precision_give_every_tenant_a_slot():
    """A float cannot represent 1e17 + 1."""
    fair = make_line()
    heavy = sequence(0, "heavy", weight=1e17)
    fair.push(heavy)
    light = sequence(1, "light")
    fair.push(light)
    fair.remove(heavy)
    assert fair.share_of(fair.account(light)) >= 1.0
    assert fair.head() is light


def test_only_the_first_few_of_many_tenants_are_searched_for_one_below_its_share():
    """The cost of a step does not grow with waiting tenants; the order by service is always exact."""
    fair = make_line()
    for number in range(MAX_EXAMINED + 1):
        for kind in ("runs", "waits"):
            one = sequence(2 * number + (kind == "waits"), f"t{number}")
            account = fair.push(one)
            account.served = float(number)
            if kind == "runs":
                fair.remove(one)
                fair.slot_taken(account)
    fair.push(sequence(99, "idle")).charge(1000.0)
    assert fair.head().request.tenant == "t0"


def test_accounts_of_idle_tenants_are_dropped_and_active_ones_are_kept():
    """A server without keys has one tenant per address; accounts of waiting or running requests keep their counts."""
    waiting_line = make_line()
    running, waiting = sequence(0, "running"), sequence(1, "waiting")
    accounts = {each: waiting_line.push(each) for each in (running, waiting)}
    for account in accounts.values():
        account.charge(100.0)
    waiting_line.remove(running)
    waiting_line.slot_taken(accounts[running])
    for number in range(2, 3 * fairness.MIN_CLEANUP_ACCOUNTS):
        idle = sequence(number, f"idle-{number}")
        waiting_line.push(idle)
        waiting_line.remove(idle)
    assert len(waiting_line._accounts) <= fairness.MIN_CLEANUP_ACCOUNTS
    assert len(waiting_line._heap) <= fairness.MIN_CLEANUP_ACCOUNTS
    assert waiting_line.account(running) is accounts[running]
    assert waiting_line.account(waiting) is accounts[waiting]
    assert waiting_line.head() is waiting
