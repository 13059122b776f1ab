"""Choice of the engine for a request."""

from __future__ import annotations

import random

from hypothesis import assume, given
from hypothesis import strategies as st

from app.engine_client.member_counts import MemberCounts, ReadyMember
from app.engine_client.router import CANDIDATES, MAX_WAITING_SHARE, MIN_PAUSE_TOKENS, NOTHING, MemberLoad, choose_member
from engine.load import Counters, EngineLoad, PageCounts
from engine.types import ServiceClass

demands = st.tuples(*[st.integers(0, 9)] * 3)
loads = st.lists(demands, min_size=1, max_size=8).map(
    lambda given: [MemberLoad(index, 4, demand) for index, demand in enumerate(given)]
)


def choose(members: list[MemberLoad], service_class: ServiceClass, seed: int = 0, cached=NOTHING) -> int:
    numbers = list(range(len(members)))
    return choose_member(numbers, members.__getitem__, service_class, random.Random(seed), cached)


people = st.sampled_from([ServiceClass.INTERACTIVE, ServiceClass.STANDARD])


caches = st.dictionaries(st.integers(0, 9), st.integers(1, 9).map(lambda marks: 64 * marks))


@given(loads, people, st.integers(0, 2**32), caches)
def test_a_person_gets_a_slot_at_once_if_any_member_has_one_free(members, service_class, seed, cached):
    """This holds although only two members are looked at first. A long prefix may be worth a pause of batch work."""
    index = choose(members, service_class, seed, cached)
    pauses = cached.get(index, 0) >= MIN_PAUSE_TOKENS and members[index].occupation(service_class) < 1
    assert pauses or members[index].has_free_slot or not any(load.has_free_slot for load in members)


@given(st.tuples(demands, demands), st.sampled_from(ServiceClass), st.integers(0, 2**32))
def test_of_two_full_members_the_one_with_less_work_of_the_class_is_chosen(pair, service_class, seed):
    """Work that the request preempts counts only between equals."""
    members = [MemberLoad(index, 4, (4 + first, *rest)) for index, (first, *rest) in enumerate(pair)]
    assume(service_class is not ServiceClass.BATCH or all(load.takes_batch for load in members))
    chosen = choose(members, service_class, seed)
    best = min(members, key=lambda load: (load.occupation(service_class), sum(load.demand)))
    assert (members[chosen].occupation(service_class), sum(members[chosen].demand)) == (
        best.occupation(service_class),
        sum(best.demand),
    )


@given(st.tuples(demands, demands), st.integers(0, 9), st.integers(0, 9), people, st.integers(0, 2**32))
def test_of_two_full_members_the_one_with_fewer_turns_before_the_request_is_chosen(pair, here, there, tier, seed):
    """Those are its tenant's own choices and as many of others, or all if these are fewer."""
    members = [
        MemberLoad(index, 4, (4 + first + own, *rest))
        for index, ((first, *rest), own) in enumerate(zip(pair, (here, there), strict=True))
    ]
    own = [here, there]
    chosen = choose_member([0, 1], members.__getitem__, tier, random.Random(seed), NOTHING, own.__getitem__)
    turns = [min(4 * load.occupation(tier), 2 * own[load.index]) for load in members]
    assert turns[chosen] == min(turns)


def test_the_own_choices_of_a_tenant_are_counted_by_member_and_class():
    """Those of lower classes would be preempted, and those of a lost engine wait again."""
    counts = MemberCounts()
    counts.add(0, "a", ServiceClass.STANDARD, 2)
    counts.add(0, "a", ServiceClass.BATCH, 1)
    counts.add(0, "b", ServiceClass.STANDARD, 4)
    counts.add(1, "a", ServiceClass.INTERACTIVE, 1)
    members = {index: ReadyMember(index, 4, None) for index in range(3)}
    assert [counts.of_tenant(members, "a", ServiceClass.STANDARD, index) for index in members] == [2, 1, 0]
    assert [counts.of_tenant(members, "a", each, 0) for each in ServiceClass] == [0, 2, 3]
    assert counts.of_tenant({0: ReadyMember(0, 4, None, connections=3)}, "a", ServiceClass.BATCH, 0) == 9
    counts.remove(0, "a", ServiceClass.STANDARD)
    assert counts.of_tenant(members, "a", ServiceClass.STANDARD, 0) == 1
    counts.clear(0)
    assert counts.of_tenant(members, "a", ServiceClass.BATCH, 0) == 0


@given(loads, st.sampled_from(ServiceClass), st.integers(0, 2**32), caches)
def test_a_request_goes_to_the_longest_prefix_if_that_has_a_free_slot(members, service_class, seed, cached):
    """What it saves is more than another member's shorter queue is worth."""
    longest = max(cached.get(load.index, 0) for load in members)
    chosen = members[choose(members, service_class, seed, cached)]
    if all(load.has_free_slot for load in members):
        assert cached.get(chosen.index, 0) == longest


@given(loads, people, st.integers(0, 2**32))
def test_a_session_leaves_its_pages_rather_than_wait_behind_people(members, service_class, seed):
    """The member with its pages has more people than slots, and another one has a free slot."""
    members = [*members, MemberLoad(len(members), 4, (5, 0, 0)), MemberLoad(len(members) + 1, 4, (0, 0, 0))]
    chosen = members[choose(members, service_class, seed, {len(members) - 2: 9_999})]
    assert chosen.has_free_slot


def test_a_prefix_that_all_members_have_attracts_no_request():
    """A system prompt is in every cache, and new sessions spread."""
    members = [MemberLoad(index, 4, (0, 0, 0)) for index in range(5)]
    cached = dict.fromkeys(range(5), 512)
    assert {choose(members, ServiceClass.STANDARD, seed, cached) for seed in range(100)} == set(range(5))


def test_requests_spread_over_members_that_have_equal_loads():
    """Otherwise all that arrive between two load reports would go to one of them."""
    members = [MemberLoad(index, 4, (9, 9, 9)) for index in range(5)]
    assert {choose(members, ServiceClass.STANDARD, seed) for seed in range(100)} == set(range(5))


@given(loads, st.integers(0, 2**32))
def test_a_batch_request_goes_to_a_member_that_takes_it(members, seed):
    """This holds although only two members are looked at first."""
    chosen = members[choose(members, ServiceClass.BATCH, seed)]
    assert chosen.takes_batch or not any(load.takes_batch for load in members)


@given(st.integers(2, 9), st.integers(0, 2**32))
def test_few_loads_are_computed_for_a_choice(members, seed):
    """A decision costs the same among many members, as long as one of two random ones has room."""
    asked: list[int] = []

    def get_load(member: int) -> MemberLoad:
        asked.append(member)
        return MemberLoad(member, 4, (0, 1, 2))

    choose_member(range(members), get_load, ServiceClass.BATCH, random.Random(seed))
    assert len(asked) == CANDIDATES


def test_batch_requests_wait_in_an_engine_up_to_a_multiple_of_its_slots():
    """Further ones are bound to an engine later."""
    assert MemberLoad(0, 4, (1, 0, 4 + 4 * MAX_WAITING_SHARE - 2)).takes_batch
    assert not MemberLoad(0, 4, (1, 0, 4 + 4 * MAX_WAITING_SHARE - 1)).takes_batch


def report_of(running: int) -> EngineLoad:
    return EngineLoad((0, running, 0), (0, 0, 1), (0, 1, 0), PageCounts(9, 0, 0, 9, 0, 0), Counters())


def test_loads_count_requests_that_no_report_contains_yet():
    """Choices of this process are exact, and those of other processes come from the report."""
    counts = MemberCounts()
    counts.add(1, "a", ServiceClass.STANDARD, 3)
    assert counts.load(ReadyMember(1, 4, None)).demand == (0, 3, 0)
    assert counts.load(ReadyMember(1, 4, report_of(running=2))).demand == (0, 3 + 3, 1)
    counts.report(1, ServiceClass.STANDARD, 3)
    assert counts.load(ReadyMember(1, 4, report_of(running=2))).demand == (0, 3, 1)
    counts.remove(1, "a", ServiceClass.STANDARD)
    assert counts.load(ReadyMember(1, 4, report_of(running=1))).demand == (0, 2, 1)
    assert counts.total(1) == 2 and counts.total(0) == 0
    counts.clear(1)
    assert counts.load(ReadyMember(1, 4, None)).demand == (0, 0, 0)


def test_other_api_processes_are_expected_to_have_sent_as_much_since_the_report():
    """Otherwise all of them would send their requests to the engine that was idle when it reported."""
    counts, member = MemberCounts(), ReadyMember(0, 4, report_of(running=2), connections=3)
    counts.add(0, "a", ServiceClass.STANDARD, 2)
    assert counts.load(member).demand == (0, 3 + 3 * 2, 1)
    assert counts.waiting_in_members == 10 - 4
    counts.report(0, ServiceClass.STANDARD, 2)
    assert counts.load(member).demand == (0, 3, 1)
    counts.clear(0)
    assert counts.waiting_in_members == 0
