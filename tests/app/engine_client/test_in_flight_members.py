"""Requests in flight on several members: each is on one of them, suspects are trials, batch is bound late."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from app.engine_client.balancing import MIN_WAIT_SECONDS
from app.engine_client.in_flight import InFlight
from app.engine_client.in_flight_request import SUSPECT_DEATHS
from app.engine_client.member_counts import ReadyMember
from app.engine_client.router import MAX_WAITING_SHARE
from app.streams.status import MoveReason
from engine.progress import MIN_PROGRESS_TOKENS
from engine.types import (
    EndEvent,
    FinishReason,
    Phase,
    Request,
    SamplingParams,
    ServiceClass,
    StatusEvent,
    TokenEvent,
    WaitReason,
)

MEMBERS, SLOTS = 3, 2
MAX_BATCH = SLOTS * (1 + MAX_WAITING_SHARE)  # choices of a member beyond which it gets no batch request
member_numbers = st.integers(0, MEMBERS - 1)
MAX_KILLED = SUSPECT_DEATHS + 1  # members that one request kills before it ends


def request(name: str, n: int = 1, service_class: ServiceClass = ServiceClass.STANDARD, tenant: str = "") -> Request:
    sampling = SamplingParams(max_tokens=99)
    return Request(id=name, prompt=(1, 2), sampling=sampling, n=n, service_class=service_class, tenant=tenant)


def ready(*members: int) -> list[ReadyMember]:
    return [ReadyMember(member, SLOTS, None) for member in members]


class InFlightMachine(RuleBasedStateMachine):
    """Members that join, answer and die in any order, beside a plain record of the requests that each has."""

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.in_flight = InFlight(random.Random(0), lambda: self.now, has_several=True)
        self.recalled: set[str] = set()  # requests that their members were asked to give back, and have not
        self.joined: dict[int, set[str]] = {}  # requests of each member that is up
        self.output: dict[tuple[str, int], list[int]] = {}  # of choices that have not ended
        self.aborted: set[tuple[str, int]] = set()
        self.ends: Counter[tuple[str, int]] = Counter()
        self.tried: dict[int, str] = {}  # request that each member computes alone, perhaps of another process
        self.submitted: set[str] = set()
        self.tokens = 0

    def sink(self, event) -> None:
        key = event.request_id, event.choice
        assert not self.ends[key]
        if isinstance(event, TokenEvent):
            self.output[key].append(event.token_id)
        if getattr(event, "finish", None) is not None:
            self.ends[key] += 1
            del self.output[key]

    def send_waiting(self) -> None:
        """Send the members the requests that they may have, as their client does."""
        for member, requests in self.in_flight.requests_to_send(ready(*sorted(self.joined))).items():
            for sent in requests:
                self.send(member, sent)

    def send(self, member: int, sent: Request) -> None:
        assert not any(sent.id in names for names in self.joined.values()), "a request is on two members"
        state = self.in_flight.get(sent.id)
        for choice in sent.choices:
            assert list(sent.output_so_far.get(choice, ())) == self.output[sent.id, choice]
        assert sent.is_trial == (state.deaths >= SUSPECT_DEATHS)
        assert (sent.is_paused, sent.service_class) == (state.request.is_paused, state.request.service_class)
        if sent.service_class is ServiceClass.BATCH and not sent.is_paused:
            assert sum(self.demand(member)) < MAX_BATCH, "a batch request is bound early"
        self.joined[member].add(sent.id)

    def handle(self, event) -> None:
        [member] = [member for member, names in self.joined.items() if event.request_id in names]
        may_send = self.in_flight.handle(event)
        state = self.in_flight.get(event.request_id)
        if state is None or state.member is None:
            self.joined[member].discard(event.request_id)
            self.recalled.discard(event.request_id)
        if may_send or self.in_flight.waiting.late:
            self.send_waiting()

    @rule(target=names, n=st.integers(1, 2), service_class=st.sampled_from(ServiceClass), tenant=st.sampled_from("abc"))
    def submit(self, n: int, service_class: ServiceClass, tenant: str) -> str:
        name = f"r{len(self.submitted)}"
        self.submitted.add(name)
        self.output |= {(name, choice): [] for choice in range(n)}
        state = self.in_flight.add(request(name, n, service_class, tenant), self.sink)
        self.send_waiting()
        if state.member is None and not state.position:
            assert not self.joined
            state.report_no_engine()
        return name

    @rule(member=member_numbers, data=st.data())
    def trial(self, member: int, data) -> None:
        """Report the trial of a member: one of its suspects, that of another process, or the end of one."""
        if member in self.joined:
            suspects = [name for name in sorted(self.joined[member]) if self.in_flight.get(name).is_suspect]
            self.tried[member] = data.draw(st.sampled_from([*suspects, "of another process", ""]))
            self.in_flight.note_trial(member, self.tried[member])

    @rule(member=member_numbers)
    def join(self, member: int) -> None:
        if member not in self.joined:
            self.joined[member] = set()
            self.send_waiting()

    @rule(member=member_numbers)
    def lose(self, member: int) -> None:
        if member not in self.joined:
            return
        names, before, ended = self.joined.pop(member), len(self.in_flight), set(self.ends)
        self.recalled -= names
        others = {name: self.in_flight.get(name).member for mine in self.joined.values() for name in mine}
        trial = self.tried.pop(member, "")
        deaths = {name: self.in_flight.get(name).deaths for name in names}
        has_culprit = trial in names and self.in_flight.get(trial).is_suspect
        assert self.in_flight.lose_engine(member) == bool(trial)
        assert len(self.in_flight) == before - has_culprit
        assert {name: self.in_flight.get(name).member for name in others} == others, "another member lost a request"
        culprits = {name for name, _ in set(self.ends) - ended if self.in_flight.get(name) is None}
        assert culprits == ({trial} if has_culprit else set())
        assert all(self.in_flight.get(name).member is None for name in names - culprits)
        if trial:
            others = names - {trial}
            assert {name: self.in_flight.get(name).deaths for name in others} == {name: deaths[name] for name in others}
        self.send_waiting()

    @rule(seconds=st.sampled_from([0.0, MIN_WAIT_SECONDS]))
    def balance(self, seconds: float) -> None:
        """Ask for requests back that wait in a full member while another has free slots."""
        self.now += seconds
        free = {member for member in self.joined if sum(self.demand(member)) < SLOTS}
        for member, name in self.in_flight.requests_to_recall(ready(*sorted(self.joined))):
            assert name in self.joined[member] and member not in free and free
            assert (self.in_flight.get(name).deaths, self.in_flight.get(name).request.is_paused) == (0, False)
            assert name not in self.recalled
            self.recalled.add(name)

    @rule(name=names, data=st.data())
    def give_back(self, name: str, data) -> None:
        """A member ends a request that it was asked for, possibly aborted meanwhile."""
        if name not in self.recalled:
            return
        is_aborted = data.draw(st.booleans())
        for position, choice in enumerate(self.choices(name)):
            if is_aborted and position == 1:
                self.in_flight.get(name).abort(None)
            self.now += 1.0
            self.handle(StatusEvent(name, choice, Phase.ENDED, monotonic_time=self.now))
            self.handle(EndEvent(name, choice, FinishReason.ABORT))

    @rule(name=names, phase=st.sampled_from([Phase.QUEUED, Phase.PREFILL, Phase.DECODE, Phase.PAUSED]))
    def status(self, name: str, phase: Phase) -> None:
        if self.is_sent(name):
            self.handle(StatusEvent(name, self.choices(name)[0], phase, monotonic_time=self.now))

    @rule(name=names, tokens=st.integers(1, MIN_PROGRESS_TOKENS), ends=st.booleans())
    def progress(self, name: str, tokens: int, ends: bool) -> None:
        for serial in range(tokens):
            if self.is_sent(name):
                self.tokens += 1
                finish = FinishReason.STOP if ends and serial == tokens - 1 else None
                self.handle(TokenEvent(name, self.choices(name)[-1], self.tokens, finish))

    @rule(name=names, is_paused=st.booleans(), service_class=st.sampled_from(ServiceClass))
    def change(self, name: str, is_paused: bool, service_class: ServiceClass) -> None:
        """Its client pauses or resumes a request, or moves it to a class; the member that has it is to do the same."""
        expected = getattr(self.in_flight.get(name), "member", None)
        assert self.in_flight.change(name, is_paused=is_paused, service_class=service_class) == expected
        self.send_waiting()

    @rule(name=names)
    def abort(self, name: str) -> None:
        """Abort all choices; a member that has the request ends it."""
        if (state := self.in_flight.get(name)) is None:
            return
        state.abort(None)
        if state.member is None:
            self.in_flight.drop_aborted(name)
            assert self.in_flight.get(name) is None
            self.send_waiting()
        for choice in self.choices(name):
            self.handle(EndEvent(name, choice, FinishReason.ABORT))

    def is_sent(self, name: str) -> bool:
        return any(name in names for names in self.joined.values())

    def choices(self, name: str) -> list[int]:
        return [choice for request_id, choice in self.output if request_id == name]

    def num_choices(self, member: int) -> int:
        return sum(len(self.choices(name)) for name in self.joined[member])

    def demand(self, member: int) -> tuple[int, ...]:
        """Return the choices of a member that need a slot, by class."""
        states = [each for each in map(self.in_flight.get, self.joined[member]) if not each.request.is_paused]
        return tuple(sum(s.num_choices for s in states if s.request.service_class is each) for each in ServiceClass)

    @invariant()
    def paused_choices_are_no_demand(self) -> None:
        for member in self.joined:
            assert self.in_flight._counts.load(*ready(member)).demand == self.demand(member)

    @invariant()
    def counts_are_exact(self) -> None:
        for member in range(MEMBERS):
            expected = self.num_choices(member) if member in self.joined else 0
            assert self.in_flight.num_choices(member) == expected

    @invariant()
    def no_request_is_lost(self) -> None:
        live = {name for name, _ in self.output}
        assert live == {name for name in self.submitted if self.in_flight.get(name) is not None}
        for name in live:
            on = [member for member, names in self.joined.items() if name in names]
            assert on == ([] if (member := self.in_flight.get(name).member) is None else [member])

    @invariant()
    def no_request_waits_beside_a_member_that_takes_it(self) -> None:
        waiting = [state for name, _ in self.output if (state := self.in_flight.get(name)).member is None]
        for state in waiting:
            if state.request.service_class is not ServiceClass.BATCH or state.request.is_paused:
                assert not self.joined
            assert all(sum(self.demand(member)) >= MAX_BATCH for member in self.joined)


InFlightMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestInFlightMachine = InFlightMachine.TestCase


@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(0, 8))
def test_a_request_that_kills_its_members_ends_after_three(seed: int, members: int, others: int):
    """It is on any members beside any requests, its deaths travel with it, and all other requests are answered."""
    drawn = random.Random(seed)
    in_flight, ends, killed = InFlight(drawn, has_several=True), {}, 0
    bad = drawn.randrange(others + 1)

    def sink(event) -> None:
        if getattr(event, "finish", None) is not None:
            ends[event.request_id] = getattr(event, "code", "")

    names = [f"r{number}" if number != bad else "bad" for number in range(others + 1)]
    for name in names:
        in_flight.add(request(name), sink)
        in_flight.requests_to_send(ready(*range(members)))
    while len(in_flight):
        computing = [state for name in names if (state := in_flight.get(name)) and state.member is not None]
        chosen = drawn.choice(computing)
        in_flight.handle(StatusEvent(chosen.request.id, 0, Phase.PREFILL))
        member = chosen.member
        if chosen.is_suspect:
            in_flight.note_trial(member, chosen.request.id)
        if chosen.request.id == "bad":
            in_flight.lose_engine(member)
            killed += 1
            asked = drawn.sample(range(members), members)  # the lost one is replaced before or after others ask
        else:
            finish = drawn.choice([FinishReason.STOP, None])
            in_flight.handle(TokenEvent(chosen.request.id, 0, 7, finish))
            in_flight.note_trial(member, "")
            asked = []
        for each in asked:
            in_flight.requests_to_send(ready(each))
    assert ends == {name: "engine_died" if name == "bad" else "" for name in names}
    assert killed == MAX_KILLED


def test_other_requests_go_to_any_member_during_a_trial():
    """Their engine holds them up for a moment only, so that no member is closed to them."""
    in_flight, ends = InFlight(random.Random(0), has_several=True), []
    for _ in range(SUSPECT_DEATHS):
        in_flight.get("bad") or in_flight.add(request("bad"), ends.append)
        in_flight.requests_to_send(ready(0))
        in_flight.handle(StatusEvent("bad", 0, Phase.PREFILL))
        in_flight.lose_engine(0)
    for name in ("x", "y", "z"):
        in_flight.add(request(name), ends.append)
    sent = in_flight.requests_to_send(ready(0, 1))
    trial = in_flight.get("bad").member
    assert sorted(each.id for requests in sent.values() for each in requests) == ["bad", "x", "y", "z"]
    assert set(sent) == {0, 1} and len(sent[trial]) == 2
    in_flight.note_trial(trial, "bad")
    assert in_flight.lose_engine(trial)
    assert [event.request_id for event in ends if isinstance(event, EndEvent)] == ["bad"]
    [moved] = in_flight.requests_to_send(ready(1 - trial))[1 - trial]
    assert in_flight.get(moved.id).deaths == 0 and len(in_flight) == 3


def test_drained_engines_make_no_suspect():
    """A request that was computed in each of them has caused none of their ends."""
    in_flight = InFlight(has_several=True)
    in_flight.add(request("a"), lambda event: None)
    for _ in range(2 * SUSPECT_DEATHS):
        assert [each.id for each in in_flight.requests_to_send(ready(0))[0]] == ["a"]
        in_flight.handle(StatusEvent("a", 0, Phase.PREFILL))
        assert not in_flight.lose_engine(0, has_died=False)
    assert not in_flight.get("a").is_suspect


def test_batch_requests_of_a_lost_member_wait_in_their_former_place():
    """People go to the other member at once, and batch work follows as far as that member needs it."""
    in_flight, positions = InFlight(random.Random(0), has_several=True), {}

    def sink(event) -> None:
        positions[event.request_id] = event.position, event.cause

    for number in range(2 * MAX_BATCH + 3):
        in_flight.add(request(f"b{number:02}", service_class=ServiceClass.BATCH), sink)
    in_flight.add(request("person"), sink)
    assert sum(map(len, in_flight.requests_to_send(ready(0, 1)).values())) == 2 * MAX_BATCH
    lost = in_flight.get("person").member
    in_flight.lose_engine(lost)
    assert [each.id for each in in_flight.requests_to_send(ready(1 - lost))[1 - lost]] == ["person"]
    waiting = [each.request.id for each in in_flight.waiting.in_turn()]
    assert waiting == sorted(waiting) and len(waiting) == MAX_BATCH + 3
    ahead = in_flight.num_choices(1 - lost) - SLOTS
    assert [positions[name] for name in waiting] == [
        (position, WaitReason.ORDER) for position in range(ahead + 1, ahead + len(waiting) + 1)
    ]


def test_batch_requests_go_only_to_members_that_need_them():
    """A full member gets none, even if the only other one is not among the first candidates."""
    in_flight = InFlight(random.Random(0), has_several=True)
    for number in range(14 * MAX_BATCH):
        in_flight.add(request(f"r{number}"), lambda event: None)
    in_flight.requests_to_send(ready(*range(7)))
    for number in range(MAX_BATCH):
        in_flight.add(request(f"b{number}", service_class=ServiceClass.BATCH), lambda event: None)
    assert {index: len(sent) for index, sent in in_flight.requests_to_send(ready(*range(8))).items()} == {7: MAX_BATCH}


def test_a_request_that_waits_moves_to_a_member_with_a_free_slot():
    """Its engine ends it as if it were aborted, and the other one continues it; the client is told of the move only."""
    now = 0.0
    in_flight, events = InFlight(random.Random(0), lambda: now, has_several=True), []
    for number in range(SLOTS):
        in_flight.add(request(f"first{number}"), lambda event: None)
    in_flight.add(request("paused", n=2), events.append)
    in_flight.requests_to_send(ready(0))
    for token in range(3):
        in_flight.handle(TokenEvent("paused", 0, token))
    for choice in range(2):
        in_flight.handle(StatusEvent("paused", choice, Phase.PAUSED, monotonic_time=now))
    both = ready(0, 1)
    assert in_flight.requests_to_recall(both) == [], "it has waited for a moment only"
    now = MIN_WAIT_SECONDS
    assert in_flight.requests_to_recall(both[:1]) == []
    assert in_flight.requests_to_recall(both) == [(0, "paused")]
    assert in_flight.requests_to_recall(both) == [], "it was asked back already"
    seen = len(events)
    for choice in range(2):
        in_flight.handle(StatusEvent("paused", choice, Phase.ENDED, monotonic_time=now))
        has_left = in_flight.handle(EndEvent("paused", choice, FinishReason.ABORT))
        assert has_left == (choice == 1)
    assert in_flight.num_choices(0) == SLOTS
    [moved] = in_flight.requests_to_send(both)[1]
    assert moved.output_so_far == {0: (0, 1, 2), 1: ()}
    assert [(each.left_engine, each.reason, each.next_engine) for each in events[seen:]] == [
        (0, MoveReason.BUSY, None),
        (0, MoveReason.BUSY, None),
        (0, MoveReason.BUSY, 1),
        (0, MoveReason.BUSY, 1),
    ]


def test_an_abort_by_the_client_wins_over_a_move():
    """The request ends when its engine has given it back, and goes nowhere."""
    in_flight, ends = InFlight(random.Random(0), lambda: MIN_WAIT_SECONDS, has_several=True), []
    for number in range(SLOTS):
        in_flight.add(request(f"first{number}"), lambda event: None)
    in_flight.add(request("bad", n=2), ends.append)
    in_flight.requests_to_send(ready(0))
    for choice in range(2):
        in_flight.handle(StatusEvent("bad", choice, Phase.QUEUED))
    assert in_flight.requests_to_recall(ready(0, 1)) == [(0, "bad")]
    in_flight.handle(EndEvent("bad", 0, FinishReason.ABORT))
    in_flight.get("bad").abort(None)
    in_flight.handle(EndEvent("bad", 1, FinishReason.ABORT))
    assert not in_flight.requests_to_send(ready(0, 1)) and in_flight.get("bad") is None
    assert sorted(event.choice for event in ends if isinstance(event, EndEvent)) == [0, 1]
