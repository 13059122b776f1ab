"""Requests in flight: which of them the next engine gets, and their output so far."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.engine_client.in_flight import InFlight
from app.engine_client.in_flight_request import SUSPECT_DEATHS
from app.engine_client.member_counts import ReadyMember
from engine.progress import MIN_PROGRESS_TOKENS
from engine.sent_events import SentEvents
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


def request(name: str, n: int = 1, service_class: ServiceClass = ServiceClass.STANDARD) -> Request:
    return Request(id=name, prompt=(1, 2), sampling=SamplingParams(max_tokens=99), n=n, service_class=service_class)


def send(in_flight: InFlight, *members: int) -> list[Request]:
    """Return the requests that members get now, by default the only one."""
    ready = [ReadyMember(member, 8, None) for member in members or (0,)]
    return [each for requests in in_flight.requests_to_send(ready).values() for each in requests]


def prefill_status(name: str, choice: int = 0) -> StatusEvent:
    return StatusEvent(name, choice, Phase.PREFILL)


def test_the_next_engine_gets_the_output_of_unfinished_choices():
    """Requests without output are sent unchanged."""
    in_flight, events = InFlight(has_several=False), []
    predicted = replace(request("a", n=3), prediction=(7, 9))
    in_flight.add(predicted, events.append)
    in_flight.add(request("b"), print)
    assert send(in_flight) == [predicted, request("b")]
    for event in (TokenEvent("a", 0, 7), TokenEvent("a", 1, 8, FinishReason.STOP), TokenEvent("a", 0, 2**32 - 1)):
        assert not in_flight.handle(event)
    assert send(in_flight) == []
    in_flight.lose_engine()
    first, second = send(in_flight)
    assert first.output_so_far == {0: (7, 2**32 - 1), 2: ()} and list(first.choices) == [0, 2]
    assert first.prediction == (7, 9)
    assert replace(second, waiting_since=None) == request("b")
    assert [(e.choice, e.cause) for e in events if isinstance(e, StatusEvent)] == [
        (0, WaitReason.RESTART),
        (2, WaitReason.RESTART),
    ]


def test_a_request_aborted_between_two_engines_is_not_sent():
    """This holds even if the next engine is ready before any event was delivered."""
    in_flight, events = InFlight(has_several=False), []
    in_flight.add(request("a", n=2), events.append)
    send(in_flight)
    in_flight.get("a").abort(0)  # which the crashed engine may not have received
    in_flight.lose_engine()
    in_flight.get("a").abort(1)
    assert send(in_flight) == [] and len(in_flight) == 0
    assert [(e.choice, e.finish) for e in events if isinstance(e, EndEvent)] == [(0, "abort"), (1, "abort")]
    phases = [(e.choice, e.phase) for e in events if isinstance(e, StatusEvent)]  # for the request's timeline
    assert phases == [(1, Phase.QUEUED), (0, Phase.ENDED), (1, Phase.ENDED)]


def test_a_waiting_request_keeps_its_age_in_the_next_engine():
    """A request with a slot waits from the time at which it lost the slot, by preemption or with the engine."""
    in_flight, events = InFlight(has_several=False), []
    for name in ("waits", "paused", "runs"):
        in_flight.add(request(name), events.append)
    assert [each.waiting_since for each in send(in_flight)] == [None] * 3
    for event in (
        StatusEvent("waits", 0, Phase.QUEUED, cause=WaitReason.STEP, monotonic_time=1.0),
        StatusEvent("waits", 0, Phase.QUEUED, cause=WaitReason.SLOTS, monotonic_time=2.0),
        StatusEvent("paused", 0, Phase.QUEUED, monotonic_time=1.0),
        StatusEvent("paused", 0, Phase.DECODE, monotonic_time=2.0),
        StatusEvent("paused", 0, Phase.PAUSED, monotonic_time=3.0),
        StatusEvent("runs", 0, Phase.DECODE, monotonic_time=3.0),
    ):
        in_flight.handle(event)
    in_flight.lose_engine()
    in_flight.add(request("late"), events.append).report_no_engine()
    in_flight.lose_engine()  # which had only begun to load
    ages = {each.id: each.waiting_since for each in send(in_flight)}
    # Time of the first restart event of each request.
    restarted_at = {e.request_id: e.monotonic_time for e in reversed(events) if e.cause is WaitReason.RESTART}
    assert ages == {"waits": 1.0, "paused": 3.0, "runs": restarted_at["runs"], "late": restarted_at["late"]}


def make_suspects(in_flight: InFlight, *names: str, sink=lambda event: None) -> None:
    """Let engines die of requests until all of these are sent as trials."""
    for name in names:
        in_flight.add(request(name), sink)
    for _ in range(SUSPECT_DEATHS):
        assert not any(each.is_trial for each in send(in_flight))
        for name in names:
            in_flight.handle(prefill_status(name))
        assert not in_flight.lose_engine()


def test_suspects_are_sent_at_once_as_trials_beside_other_requests():
    """Requests that were not running are ordinary, and so is a suspect after its progress."""
    in_flight = InFlight(has_several=False)
    in_flight.add(request("waits"), lambda event: None)
    send(in_flight)
    in_flight.handle(StatusEvent("waits", 0, Phase.QUEUED, cause=WaitReason.SLOTS))
    for name in "ab":
        in_flight.add(request(name), lambda event: None)
    for _ in range(SUSPECT_DEATHS):
        send(in_flight)
        for name in "ab":
            in_flight.handle(prefill_status(name))
        in_flight.handle(StatusEvent("waits", 0, Phase.QUEUED, cause=WaitReason.SLOTS))
        in_flight.lose_engine()
    assert [(each.id, each.is_trial) for each in send(in_flight)] == [("waits", False), ("a", True), ("b", True)]
    for token in range(MIN_PROGRESS_TOKENS):
        assert in_flight.get("a").is_suspect
        in_flight.handle(TokenEvent("a", 0, token))
    in_flight.lose_engine()
    assert {each.id: each.is_trial for each in send(in_flight)} == {"waits": False, "a": False, "b": True}


def test_an_engine_that_dies_in_a_trial_is_blamed_on_the_trial_alone():
    """Requests that had a slot, or of which nothing was reported, have no death more than before."""
    in_flight, ends = InFlight(has_several=False), []
    make_suspects(in_flight, "bad", "suspect", sink=ends.append)
    in_flight.add(request("runs"), ends.append)
    in_flight.add(request("sent"), ends.append)
    assert len(send(in_flight)) == 4
    for name in ("bad", "suspect", "runs"):
        in_flight.handle(prefill_status(name))
    in_flight.note_trial(0, "bad")
    assert in_flight.is_at_work()
    assert in_flight.lose_engine()
    assert [(e.request_id, e.code) for e in ends if isinstance(e, EndEvent)] == [("bad", "engine_died")]
    assert {each.id: each.is_trial for each in send(in_flight)} == {"suspect": True, "runs": False, "sent": False}
    assert [in_flight.get(name).deaths for name in ("suspect", "runs", "sent")] == [SUSPECT_DEATHS, 0, 0]


def test_the_trial_of_another_process_is_blamed_for_no_request_of_this_one():
    """This process has done nothing, so its engine does not count as one that died of its work either."""
    in_flight = InFlight(has_several=False)
    in_flight.add(request("runs"), lambda event: None)
    send(in_flight)
    in_flight.handle(prefill_status("runs"))
    in_flight.note_trial(0, "of another process")
    assert not in_flight.is_at_work()
    assert in_flight.lose_engine(), "the culprit is known, although not here"
    assert in_flight.get("runs").deaths == 0


def test_after_a_trial_all_requests_are_blamed_again():
    """The end of a trial is reported before others are computed."""
    in_flight = InFlight(has_several=False)
    make_suspects(in_flight, "a")
    in_flight.add(request("b"), lambda event: None)
    send(in_flight)
    for name in "ab":
        in_flight.handle(prefill_status(name))
    in_flight.note_trial(0, "a")
    for token in range(MIN_PROGRESS_TOKENS):
        in_flight.handle(TokenEvent("a", 0, token))
    in_flight.note_trial(0, "")
    assert not in_flight.lose_engine()
    assert [in_flight.get(name).deaths for name in "ab"] == [1, 1]


def test_a_trial_that_has_made_progress_is_not_the_culprit():
    """Its tokens may arrive before the report that it is no longer alone."""
    in_flight = InFlight(has_several=False)
    make_suspects(in_flight, "a")
    send(in_flight)
    in_flight.note_trial(0, "a")
    for token in range(MIN_PROGRESS_TOKENS):
        in_flight.handle(TokenEvent("a", 0, token))
    in_flight.lose_engine()
    assert [each.id for each in send(in_flight)] == ["a"]


def test_a_drained_engine_ends_no_trial():
    """The trial goes on as one in the next engine."""
    in_flight = InFlight(has_several=False)
    make_suspects(in_flight, "a")
    send(in_flight)
    in_flight.note_trial(0, "a")
    assert not in_flight.lose_engine(has_died=False)
    assert [(each.id, each.is_trial) for each in send(in_flight)] == [("a", True)]
    assert in_flight.is_at_work(), "the next engine has reported no trial"


def test_a_request_that_is_adopted_during_its_trial_is_its_culprit():
    """The process that has counted its deaths is gone."""
    in_flight, ends = InFlight(has_several=False), []
    in_flight.adopt(replace(request("a"), is_trial=True), ends.append, 0)
    in_flight.note_trial(0, "a")
    in_flight.lose_engine()
    assert [event.code for event in ends if isinstance(event, EndEvent)] == ["engine_died"]


def test_progress_of_a_request_counts_for_each_choice():
    """A request that crashes engines is not cleared by the tokens of its other choices."""
    in_flight = InFlight(has_several=False)
    in_flight.add(request("a", n=MIN_PROGRESS_TOKENS), lambda event: None)
    for _ in range(SUSPECT_DEATHS):
        send(in_flight)
        for choice in range(MIN_PROGRESS_TOKENS):
            in_flight.handle(prefill_status("a", choice))
            in_flight.handle(TokenEvent("a", choice, 7))
        in_flight.lose_engine()
    assert in_flight.get("a").is_suspect


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.sampled_from(["token", "end", "abort", "lose"])))
)
def test_every_token_is_kept_in_order(history: list[tuple[str, int, str]]):
    """For any order of events, the next engine is sent exactly the delivered tokens, and each choice ends once."""
    in_flight = InFlight(has_several=False)
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
        sent = send(in_flight)
        for each in sent:
            for index in each.choices:
                assert list(each.output_so_far.get(index, ())) == received.get((each.id, index), [])
                assert (each.id, index) not in ended
        if action == "token":
            in_flight.handle(TokenEvent(name, choice, serial))
        elif action == "end":
            in_flight.handle(EndEvent(name, choice, FinishReason.ABORT))
        elif action == "abort":
            if ongoing := in_flight.get(name):
                ongoing.abort(choice)
        else:
            in_flight.lose_engine()
    in_flight.fail("over", "engine_unavailable")
    assert ended.keys() == {(name, choice) for name in "abc" for choice in range(2)}
    assert len(in_flight) == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["token", "stop", "end", "lose"])), max_size=40))
def test_the_next_engine_gets_the_order_in_which_choices_were_delivered(history: list[tuple[int, str]]):
    """So that another API process can adopt the request there."""
    in_flight, delivered = InFlight(has_several=False), []
    in_flight.add(replace(request("a", n=3), note=b"n"), delivered.append)
    for serial, (choice, action) in enumerate(history):
        for sent in send(in_flight):
            known = [event for event in delivered if isinstance(event, TokenEvent | EndEvent)]
            assert list(SentEvents(sent.sent).events("a")) == known
        if action == "lose":
            in_flight.lose_engine()
        elif action == "end":
            in_flight.handle(EndEvent("a", choice, FinishReason.ABORT))
        else:
            in_flight.handle(TokenEvent("a", choice, serial, FinishReason.STOP if action == "stop" else None))


def test_what_is_computed_again_keeps_the_order_of_before():
    """An engine that dies meanwhile leaves the next one with all of it; new events follow."""
    in_flight, delivered = InFlight(has_several=False), []
    before = SentEvents()
    for number, choice in enumerate((0, 0, 1, 0)):
        before.append(TokenEvent("a", choice, number))
    in_flight.adopt(replace(request("a", n=2), note=b"n", sent=before.freeze()), delivered.append, 0)
    for choice, token in ((0, 0), (0, 1), (1, 2)):
        in_flight.handle(TokenEvent("a", choice, token))
    in_flight.lose_engine()
    [moved] = send(in_flight)
    assert moved.sent == before.freeze() and moved.output_so_far == {0: (0, 1), 1: (2,)}
    for choice, token in ((0, 3), (1, 8)):
        in_flight.handle(TokenEvent("a", choice, token))
    in_flight.lose_engine()
    [moved] = send(in_flight)
    assert [event.token_id for event in SentEvents(moved.sent).events("a")] == [0, 1, 2, 3, 8]
