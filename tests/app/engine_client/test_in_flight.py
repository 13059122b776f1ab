"""Requests in flight: which of them the next engine gets, and their output so far."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.engine_client.in_flight import PROGRESS, SUSPECTED, InFlight
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


def prefill_status(name: str, choice: int = 0) -> StatusEvent:
    return StatusEvent(name, choice, Phase.PREFILL)


def test_the_next_engine_gets_the_output_of_unfinished_choices():
    """Requests without output are sent unchanged."""
    in_flight, events = InFlight(), []
    in_flight.add(request("a", n=3), events.append)
    in_flight.add(request("b"), print)
    assert in_flight.take_unsent() == [request("a", n=3), request("b")]
    for event in (TokenEvent("a", 0, 7), TokenEvent("a", 1, 8, FinishReason.STOP), TokenEvent("a", 0, 2**32 - 1)):
        assert not in_flight.take(event)
    assert in_flight.take_unsent() == []
    in_flight.lose_engine()
    first, second = in_flight.take_unsent()
    assert first.said == {0: (7, 2**32 - 1), 2: ()} and list(first.choices) == [0, 2]
    assert replace(second, since=None) == request("b")
    assert [(e.choice, e.cause) for e in events if isinstance(e, StatusEvent)] == [
        (0, Cause.RESTART),
        (2, Cause.RESTART),
    ]


def test_a_request_aborted_between_two_engines_is_not_sent():
    """This holds even if the next engine is ready before any event was delivered."""
    in_flight, events = InFlight(), []
    in_flight.add(request("a", n=2), events.append)
    in_flight.take_unsent()
    in_flight.get("a").abort(0)  # which the crashed engine may not have received
    in_flight.lose_engine()
    in_flight.get("a").abort(1)
    assert in_flight.take_unsent() == [] and len(in_flight) == 0
    assert [(e.choice, e.finish) for e in events if isinstance(e, EndEvent)] == [(0, "abort"), (1, "abort")]
    phases = [(e.choice, e.phase) for e in events if isinstance(e, StatusEvent)]  # for the request's timeline
    assert phases == [(1, Phase.QUEUED), (0, Phase.ENDED), (1, Phase.ENDED)]


def test_a_waiting_request_keeps_its_age_in_the_next_engine():
    """A request with a slot waits from the time at which it lost the slot, by preemption or with the engine."""
    in_flight, events = InFlight(), []
    for name in ("waits", "paused", "runs"):
        in_flight.add(request(name), events.append)
    assert [each.since for each in in_flight.take_unsent()] == [None] * 3
    for event in (
        StatusEvent("waits", 0, Phase.QUEUED, cause=Cause.STEP, at=1.0),
        StatusEvent("waits", 0, Phase.QUEUED, cause=Cause.SLOTS, at=2.0),
        StatusEvent("paused", 0, Phase.QUEUED, at=1.0),
        StatusEvent("paused", 0, Phase.DECODE, at=2.0),
        StatusEvent("paused", 0, Phase.PAUSED, at=3.0),
        StatusEvent("runs", 0, Phase.DECODE, at=3.0),
    ):
        in_flight.take(event)
    in_flight.lose_engine()
    in_flight.add(request("late"), events.append).tell_no_engine()
    in_flight.lose_engine()  # which had only begun to load
    ages = {each.id: each.since for each in in_flight.take_unsent()}
    # Time of the first restart event of each request.
    restarted_at = {e.request_id: e.at for e in reversed(events) if e.cause is Cause.RESTART}
    assert ages == {"waits": 1.0, "paused": 3.0, "runs": restarted_at["runs"], "late": restarted_at["late"]}


def test_suspects_are_tried_one_by_one_interactive_first():
    """Requests that were not running wait, and a suspect with enough progress continues beside the next one."""
    in_flight, ends = InFlight(), []
    for name, service_class in (("bulk", ServiceClass.BATCH), ("person", ServiceClass.INTERACTIVE)):
        in_flight.add(request(name, service_class=service_class), ends.append)
    in_flight.add(request("waits"), ends.append)
    for _ in range(SUSPECTED):
        in_flight.take_unsent()
        for name in ("bulk", "person"):
            in_flight.take(prefill_status(name))
        in_flight.take(StatusEvent("waits", 0, Phase.QUEUED, cause=Cause.SLOTS))
        assert not in_flight.is_on_trial
        in_flight.lose_engine()
    assert in_flight.is_on_trial
    assert [each.id for each in in_flight.take_unsent()] == ["person"]
    for token in range(PROGRESS - 1):
        assert not in_flight.take(TokenEvent("person", 0, token))
    assert in_flight.take_unsent() == []
    assert in_flight.take(TokenEvent("person", 0, 9))
    assert [each.id for each in in_flight.take_unsent()] == ["bulk"]
    in_flight.take(EndEvent("person", 0, FinishReason.ABORT))
    ends.clear()
    in_flight.lose_engine()  # the one on trial had no events
    assert [(e.request_id, e.code) for e in ends if isinstance(e, EndEvent)] == [("bulk", "engine_died")]
    assert [each.id for each in in_flight.take_unsent()] == ["waits"]
    assert not in_flight.is_on_trial


def test_a_suspect_is_not_blamed_for_a_request_beside_it():
    """If a request was cleared too early, the suspect is tried once more, alone."""
    in_flight, ends = InFlight(), []
    for name in "ab":
        in_flight.add(request(name), ends.append)
    for _ in range(SUSPECTED):
        in_flight.take_unsent()
        for name in "ab":
            in_flight.take(prefill_status(name))
        in_flight.lose_engine()
    in_flight.take_unsent()
    in_flight.take(prefill_status("a"))
    for token in range(PROGRESS):
        in_flight.take(TokenEvent("a", 0, token))
    assert [each.id for each in in_flight.take_unsent()] == ["b"]
    assert in_flight.has_got_on
    assert not in_flight.lose_engine()
    assert not in_flight.has_got_on
    assert not any(isinstance(event, EndEvent) for event in ends)
    assert [each.id for each in in_flight.take_unsent()] == ["b"]
    assert in_flight.lose_engine()
    assert [event.request_id for event in ends if isinstance(event, EndEvent)] == ["b"]


def test_progress_of_a_request_counts_for_each_choice():
    """A request that crashes engines is not cleared by the tokens of its other choices."""
    in_flight = InFlight()
    in_flight.add(request("a", n=PROGRESS), lambda event: None)
    for _ in range(SUSPECTED):
        in_flight.take_unsent()
        for choice in range(PROGRESS):
            in_flight.take(prefill_status("a", choice))
            in_flight.take(TokenEvent("a", choice, 7))
        in_flight.lose_engine()
    assert in_flight.is_on_trial


def test_a_trial_ends_with_its_request():
    """This holds for any kind of end."""
    in_flight = InFlight()
    for name in "ab":
        in_flight.add(request(name), lambda event: None)
    for _ in range(SUSPECTED):
        in_flight.take_unsent()
        for name in "ab":
            in_flight.take(prefill_status(name))
        in_flight.lose_engine()
    assert [each.id for each in in_flight.take_unsent()] == ["a"]
    assert in_flight.take(EndEvent("a", 0, FinishReason.ABORT))
    assert [each.id for each in in_flight.take_unsent()] == ["b"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.sampled_from(["token", "end", "abort", "lose"])))
)
def test_every_token_is_kept_in_order(history: list[tuple[str, int, str]]):
    """For any order of events, the next engine is sent exactly the delivered tokens, and each choice ends once."""
    in_flight = InFlight()
    received: dict[tuple[str, int], list[int]] = {}
    ended: dict[tuple[str, int], int] = {}

    def sink(event) -> None:
        key = (event.request_id, event.choice)
        assert key not in ended
        if isinstance(event, TokenEvent):
            received.setdefault(key, []).append(event.token_id)
        if isinstance(event, EndEvent):
            ended[key] = 1

    for name in "abc":
        in_flight.add(request(name, n=2), sink)
    for serial, (name, choice, action) in enumerate(history):
        sent = in_flight.take_unsent()
        for each in sent:
            for index in each.choices:
                assert list(each.said.get(index, ())) == received.get((each.id, index), [])
                assert (each.id, index) not in ended
        if action == "token":
            in_flight.take(TokenEvent(name, choice, serial))
        elif action == "end":
            in_flight.take(EndEvent(name, choice, FinishReason.ABORT))
        elif action == "abort":
            if ongoing := in_flight.get(name):
                ongoing.abort(choice)
        else:
            in_flight.lose_engine()
    in_flight.fail("over", "engine_unavailable")
    assert ended.keys() == {(name, choice) for name in "abc" for choice in range(2)}
    assert len(in_flight) == 0
