"""What is in flight: who is given to which engine, and what is kept of each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.in_flight import PROGRESS, SUSPECTED, InFlight
from engine.types import (
    Cause,
    EndEvent,
    FinishReason,
    Phase,
    Request,
    SamplingParams,
    ServiceClass,
    StatusEvent,
    TokenEvent,
)


def request(name: str, n: int = 1, service_class: ServiceClass = ServiceClass.STANDARD) -> Request:
    return Request(id=name, prompt=(1, 2), sampling=SamplingParams(max_tokens=99), n=n, service_class=service_class)


def running(name: str, choice: int = 0) -> StatusEvent:
    return StatusEvent(name, choice, Phase.PREFILL)


def test_the_next_engine_is_sent_what_was_said_of_the_choices_that_have_not_ended():
    """And what nothing was said of as it came."""
    flying, events = InFlight(), []
    flying.add(request("a", n=3), events.append)
    flying.add(request("b"), print)
    assert flying.take_unsent() == [request("a", n=3), request("b")]
    for event in (TokenEvent("a", 0, 7), TokenEvent("a", 1, 8, FinishReason.STOP), TokenEvent("a", 0, 2**32 - 1)):
        assert not flying.take(event)
    assert flying.take_unsent() == []
    flying.lose_engine()
    first, second = flying.take_unsent()
    assert first.said == {0: (7, 2**32 - 1), 2: ()} and list(first.choices) == [0, 2]
    assert replace(second, since=None) == request("b")
    assert [(e.choice, e.cause) for e in events if isinstance(e, StatusEvent)] == [
        (0, Cause.RESTART),
        (2, Cause.RESTART),
    ]


def test_what_is_aborted_between_two_engines_is_not_sent():
    """Not even where the next one is ready before anybody was told."""
    flying, events = InFlight(), []
    flying.add(request("a", n=2), events.append)
    flying.take_unsent()
    flying.get("a").abort(0)  # which the dying one may not have heard
    flying.lose_engine()
    flying.get("a").abort(1)
    assert flying.take_unsent() == [] and len(flying) == 0
    assert [(e.choice, e.finish) for e in events if isinstance(e, EndEvent)] == [(0, "abort"), (1, "abort")]
    phases = [(e.choice, e.phase) for e in events if isinstance(e, StatusEvent)]  # for the account of its time
    assert phases == [(1, Phase.QUEUED), (0, Phase.ENDED), (1, Phase.ENDED)]


def test_who_waits_is_as_old_to_the_next_engine_as_he_was():
    """While who had a slot waits from when he lost it: paused by the engine, or with it."""
    flying, events = InFlight(), []
    for name in ("waits", "paused", "runs"):
        flying.add(request(name), events.append)
    assert [each.since for each in flying.take_unsent()] == [None] * 3
    for event in (
        StatusEvent("waits", 0, Phase.QUEUED, cause=Cause.STEP, at=1.0),
        StatusEvent("waits", 0, Phase.QUEUED, cause=Cause.SLOTS, at=2.0),
        StatusEvent("paused", 0, Phase.QUEUED, at=1.0),
        StatusEvent("paused", 0, Phase.DECODE, at=2.0),
        StatusEvent("paused", 0, Phase.PAUSED, at=3.0),
        StatusEvent("runs", 0, Phase.DECODE, at=3.0),
    ):
        flying.take(event)
    flying.lose_engine()
    flying.add(request("late"), events.append).tell_no_engine()
    flying.lose_engine()  # which had only begun to load
    ages = {each.id: each.since for each in flying.take_unsent()}
    told = {e.request_id: e.at for e in reversed(events) if e.cause is Cause.RESTART}  # for the first time
    assert ages == {"waits": 1.0, "paused": 3.0, "runs": told["runs"], "late": told["late"]}


def test_suspects_are_tried_one_after_another_people_first():
    """While who was not at work waits; who comes far enough goes on beside the next."""
    flying, ends = InFlight(), []
    for name, service_class in (("bulk", ServiceClass.BATCH), ("person", ServiceClass.INTERACTIVE)):
        flying.add(request(name, service_class=service_class), ends.append)
    flying.add(request("waits"), ends.append)
    for _ in range(SUSPECTED):
        flying.take_unsent()
        for name in ("bulk", "person"):
            flying.take(running(name))
        flying.take(StatusEvent("waits", 0, Phase.QUEUED, cause=Cause.SLOTS))
        assert not flying.is_on_trial
        flying.lose_engine()
    assert flying.is_on_trial
    assert [each.id for each in flying.take_unsent()] == ["person"]
    for token in range(PROGRESS - 1):
        assert not flying.take(TokenEvent("person", 0, token))
    assert flying.take_unsent() == []
    assert flying.take(TokenEvent("person", 0, 9))
    assert [each.id for each in flying.take_unsent()] == ["bulk"]
    flying.take(EndEvent("person", 0, FinishReason.ABORT))
    ends.clear()
    flying.lose_engine()  # the one on trial was not heard of
    assert [(e.request_id, e.code) for e in ends if isinstance(e, EndEvent)] == [("bulk", "engine_died")]
    assert [each.id for each in flying.take_unsent()] == ["waits"]
    assert not flying.is_on_trial


def test_nobody_is_blamed_for_whom_works_beside_it():
    """One that was cleared too soon: the suspect is tried once more, alone."""
    flying, ends = InFlight(), []
    for name in "ab":
        flying.add(request(name), ends.append)
    for _ in range(SUSPECTED):
        flying.take_unsent()
        for name in "ab":
            flying.take(running(name))
        flying.lose_engine()
    flying.take_unsent()
    flying.take(running("a"))
    for token in range(PROGRESS):
        flying.take(TokenEvent("a", 0, token))
    assert [each.id for each in flying.take_unsent()] == ["b"]
    assert flying.has_got_on
    assert not flying.lose_engine()
    assert not flying.has_got_on
    assert not any(isinstance(event, EndEvent) for event in ends)
    assert [each.id for each in flying.take_unsent()] == ["b"]
    assert flying.lose_engine()
    assert [event.request_id for event in ends if isinstance(event, EndEvent)] == ["b"]


def test_a_request_of_several_choices_gets_on_with_all_of_them():
    """One that kills is not cleared by the others' tokens."""
    flying = InFlight()
    flying.add(request("a", n=PROGRESS), lambda event: None)
    for _ in range(SUSPECTED):
        flying.take_unsent()
        for choice in range(PROGRESS):
            flying.take(running("a", choice))
            flying.take(TokenEvent("a", choice, 7))
        flying.lose_engine()
    assert flying.is_on_trial


def test_a_trial_ends_with_its_request():
    """However it ends."""
    flying = InFlight()
    for name in "ab":
        flying.add(request(name), lambda event: None)
    for _ in range(SUSPECTED):
        flying.take_unsent()
        for name in "ab":
            flying.take(running(name))
        flying.lose_engine()
    assert [each.id for each in flying.take_unsent()] == ["a"]
    assert flying.take(EndEvent("a", 0, FinishReason.ABORT))
    assert [each.id for each in flying.take_unsent()] == ["b"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.sampled_from(["token", "end", "abort", "lose"])))
)
def test_every_token_is_kept_in_its_place(history: list[tuple[str, int, str]]):
    """Whatever happens in whatever order: what an engine is sent is what was heard, and each choice ends once."""
    flying = InFlight()
    heard: dict[tuple[str, int], list[int]] = {}
    ended: dict[tuple[str, int], int] = {}

    def sink(event) -> None:
        key = (event.request_id, event.choice)
        assert key not in ended
        if isinstance(event, TokenEvent):
            heard.setdefault(key, []).append(event.token_id)
        if isinstance(event, EndEvent):
            ended[key] = 1

    for name in "abc":
        flying.add(request(name, n=2), sink)
    for serial, (name, choice, what) in enumerate(history):
        sent = flying.take_unsent()
        for each in sent:
            for index in each.choices:
                assert list(each.said.get(index, ())) == heard.get((each.id, index), [])
                assert (each.id, index) not in ended
        if what == "token":
            flying.take(TokenEvent(name, choice, serial))
        elif what == "end":
            flying.take(EndEvent(name, choice, FinishReason.ABORT))
        elif what == "abort":
            if ongoing := flying.get(name):
                ongoing.abort(choice)
        else:
            flying.lose_engine()
    flying.fail("over", "engine_unavailable")
    assert ended.keys() == {(name, choice) for name in "abc" for choice in range(2)}
    assert len(flying) == 0
