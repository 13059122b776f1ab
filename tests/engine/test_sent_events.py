"""The order in which the events of several choices were sent, and requests that are computed again in that order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.sent_events import ALTERNATIVE_BYTES, Recorder, SentEvents, outputs
from engine.types import (
    Alternative,
    EndEvent,
    Event,
    FinishReason,
    Phase,
    Request,
    SamplingParams,
    SentOutput,
    StatusEvent,
    TokenEvent,
)

CHOICES = 3


def request(**more) -> Request:
    values = {"id": "r", "prompt": (1,), "sampling": SamplingParams(max_tokens=9, logprobs=2), "n": CHOICES}
    return Request(**(values | more))


def events_of(choice: int, length: int, finish: FinishReason) -> list[TokenEvent | EndEvent]:
    """Return the events of a choice, which have log-probabilities."""
    events: list[TokenEvent | EndEvent] = [
        TokenEvent("r", choice, 10 * choice + number, None, -0.5 * number, (Alternative(number, -1.0),))
        for number in range(length)
    ]
    if finish is FinishReason.ABORT:
        return [*events, EndEvent("r", choice, finish)]
    return [*events, TokenEvent("r", choice, 99, finish, -2.0)]


def in_turns(choices: list[list[TokenEvent | EndEvent]], turns: list[int]) -> list[TokenEvent | EndEvent]:
    """Return events of choices in some order; each keeps its own."""
    left = [list(events) for events in choices]
    order: list[TokenEvent | EndEvent] = []
    for turn in turns:
        if waiting := [events for events in left if events]:
            order.append(waiting[turn % len(waiting)].pop(0))
    return order + [event for events in left for event in events]


def plain(events: list[Event] | list[TokenEvent | EndEvent]) -> list[Event]:
    """Return events without log-probabilities."""
    return [
        TokenEvent(event.request_id, event.choice, event.token_id, event.finish)
        if isinstance(event, TokenEvent)
        else event
        for event in events
    ]


turns = st.lists(st.integers(0, CHOICES - 1), max_size=30)
finishes = st.sampled_from([FinishReason.STOP, FinishReason.LENGTH])
texts = st.lists(st.tuples(st.integers(0, 8), finishes), min_size=CHOICES, max_size=CHOICES)


def sent_before(events: list[TokenEvent | EndEvent]) -> SentOutput:
    sent = SentEvents()
    for event in events:
        sent.append(event)
    return sent.freeze()


@given(texts, turns)
def test_events_are_kept_in_the_order_in_which_they_were_sent(lengths, order):
    """Without log-probabilities, also as a message, and those after some output of each choice."""
    choices = [events_of(choice, *text) for choice, text in enumerate(lengths)]
    events = in_turns(choices, order)
    recorder = Recorder(request(), received := [])
    for event in (StatusEvent("r", 0, Phase.PREFILL), *events):
        recorder.append(event)
    assert received[1:] == events
    again = SentEvents(recorder.sent.freeze())
    assert list(again.events("r")) == plain(events) and again.freeze() == recorder.sent.freeze()
    after = list(again.events_after("r", {0: (0,), 2: ()}))
    first = next(number for number, event in enumerate(events) if event.choice == 0)
    expected = [event for number, event in enumerate(events) if event.choice != 1 and number != first]
    if lengths[0][0]:
        assert after == plain(expected)
    assert again.output(1) == tuple(10 + number for number in range(lengths[1][0]))


@given(texts, turns, turns, st.integers(0, 30))
def test_events_that_are_computed_again_are_passed_on_in_the_order_of_before(lengths, order, other, known: int):
    """With their log-probabilities, whatever turns the choices take now; new ones follow, and all are recorded."""
    choices = [events_of(choice, *text) for choice, text in enumerate(lengths)]
    before = in_turns(choices, order)[:known]
    recorder = Recorder(request(sent=sent_before(before)), received := [])
    for event in in_turns(choices, other):
        recorder.append(event)
    assert received[: len(before)] == before
    assert [[event for event in received if event.choice == choice] for choice in range(CHOICES)] == choices
    assert list(recorder.sent.events("r")) == plain(received)
    assert not recorder.is_replaying and recorder.held_bytes == 0 and recorder.cut == []


@given(texts, turns, turns, st.integers(0, 30), st.integers(0, 30))
def test_a_request_that_is_lost_while_it_is_computed_again_keeps_its_order(
    lengths, order, other, known: int, lost: int
):
    """Another engine gets the output of each choice, and goes on at the next event that was sent before."""
    choices = [events_of(choice, *text) for choice, text in enumerate(lengths)]
    before = in_turns(choices, order)[:known]
    first = Recorder(request(sent=sent_before(before)), received := [])
    for event in in_turns(choices, other)[:lost]:
        first.append(event)
    ended = {event.choice for event in received if event.finish is not None}
    output = {
        choice: tuple(event.token_id for event in received if event.choice == choice)
        for choice in range(CHOICES)
        if choice not in ended
    }
    if not output:
        return
    moved = request(sent=first.sent.freeze(), output_so_far=output)
    assert outputs(moved) == output
    second = Recorder(moved, received)
    for event in in_turns([choices[choice][len(tokens) :] for choice, tokens in output.items()], other[::-1]):
        second.append(event)
    assert received[: len(before)] == before
    assert [[event for event in received if event.choice == choice] for choice in range(CHOICES)] == choices


@given(st.integers(0, 5), turns, turns)
def test_a_choice_that_was_aborted_ends_there_again(length: int, order, other):
    """Its owner is asked to end it in the engine, which would go on with it."""
    aborted = events_of(0, length, FinishReason.ABORT)
    others = [events_of(choice, 4, FinishReason.STOP) for choice in (1, 2)]
    before = in_turns([aborted, *others], order)
    recorder = Recorder(request(sent=sent_before(before)), received := [])
    for event in in_turns([events_of(0, 8, FinishReason.LENGTH), *others], other):
        recorder.append(event)
    assert received == before and recorder.cut == [0]


@given(st.integers(0, 5), turns, turns)
def test_a_choice_that_ends_earlier_than_before_holds_up_no_other(stop: int, order, other):
    """Its reader has found a stop string, and the abort has crossed fewer tokens than the first time."""
    choices = [events_of(choice, 6, FinishReason.LENGTH) for choice in range(CHOICES)]
    before = in_turns(choices, order)
    recorder = Recorder(request(sent=sent_before(before)), received := [])
    for event in in_turns([events_of(0, stop, FinishReason.ABORT), *choices[1:]], other):
        recorder.append(event)
    assert [event for event in received if event.choice] == [event for event in before if event.choice]
    assert [event for event in received if not event.choice] == events_of(0, stop, FinishReason.ABORT)


def test_another_token_than_before_ends_its_choice_with_an_error():
    """No reader gets another text than before."""
    choices = [events_of(choice, 3, FinishReason.STOP) for choice in range(CHOICES)]
    recorder = Recorder(request(sent=sent_before(in_turns(choices, [0, 1, 2]))), received := [])
    recorder.append(choices[0][0])
    recorder.append(replace(choices[0][1], token_id=77))
    recorder.append(choices[1][0])
    assert [event.finish for event in received if event.choice == 0] == [None]
    for event in (*choices[1][1:], *choices[2], choices[0][2]):
        recorder.append(event)
    codes = [event.code for event in received if isinstance(event, EndEvent)]
    assert codes == ["text_changed"] and recorder.cut == [0]
    assert [event for event in received if event.choice == 0][:1] == choices[0][:1]


def test_the_memory_of_events_that_wait_for_their_turn_is_counted():
    """They are dropped when the request is given up, and each choice ends."""
    choices = [events_of(choice, 8, FinishReason.STOP) for choice in range(CHOICES)]
    recorder = Recorder(request(sent=sent_before([event for events in choices for event in events])), received := [])
    for event in (*choices[1][:5], *choices[2][:2]):
        recorder.append(event)
    assert received == [] and recorder.held_bytes == 7 * 3 * ALTERNATIVE_BYTES
    recorder.give_up("too much")
    assert recorder.held_bytes == 0 and not recorder.is_replaying
    assert sorted(recorder.cut) == sorted(event.choice for event in received) == [0, 1, 2]
    recorder.append(choices[0][0])
    assert {event.finish for event in received} == {FinishReason.ERROR}
