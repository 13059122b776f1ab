"""Counts of a prediction in the usage, from the notes at the ends of choices."""

from __future__ import annotations

from app.engine_client.client import EngineClient
from app.generation.choice import OutputOptions
from app.generation.generation import Generation
from app.streams.stream_log import ChoiceFinished, Failure, PredictionTokens, Record, StreamLog, Usage
from app.streams.timeline import IntakeTimeline
from engine.config import EngineConfig
from engine.drafting.note import LOOKUP, PREDICTION, DraftNote
from engine.types import EndEvent, FinishReason, Phase, Request, SamplingParams, StatusEvent, TokenEvent
from tests.app.text_models import MODEL

LETTER = MODEL.encode("a")[0]
STOP = MODEL.encode("b")[0]


def make(*, n: int = 1, counts_prediction: bool = True) -> Generation:
    """Return a generation whose answers end at a "b"."""
    request = Request(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=50), n=n, prediction=(1, 2))
    return Generation(
        request,
        MODEL,
        OutputOptions(("b",), counts_prediction=counts_prediction),
        StreamLog("r", "e", ""),
        None,
        EngineClient(EngineConfig(model="none")),
        IntakeTimeline(0.0),
    )


def end(generation: Generation, choice: int, note: DraftNote | None) -> None:
    """Send the status of a choice that has ended."""
    generation.handle_event(StatusEvent("r", choice, Phase.ENDED, draft_note=note))


def note(drafted: int, accepted: int) -> DraftNote:
    """Return a note with drafts of both sources."""
    return DraftNote(9, {PREDICTION: drafted, LOOKUP: 5}, {PREDICTION: accepted, LOOKUP: 1})


def last(generation: Generation) -> Record:
    return generation.log.records[-1]


def test_the_usage_sums_the_drafts_of_the_prediction_over_all_choices():
    """Drafts of other sources, and choices without a note, count for nothing."""
    generation = make(n=3)
    for choice, sent in ((0, note(7, 4)), (1, None), (2, note(2, 2))):
        generation.handle_event(StatusEvent("r", choice, Phase.DECODE))
        end(generation, choice, sent)
        generation.handle_event(TokenEvent("r", choice, LETTER, FinishReason.LENGTH))
    assert isinstance(last(generation), Usage) and last(generation).prediction == PredictionTokens(6, 3)


def test_a_request_without_a_prediction_has_no_counts():
    """Even if its drafts were looked up."""
    generation = make(counts_prediction=False)
    generation.handle_event(StatusEvent("r", 0, Phase.DECODE))
    end(generation, 0, DraftNote(1, {LOOKUP: 5}, {LOOKUP: 1}))
    generation.handle_event(TokenEvent("r", 0, LETTER, FinishReason.LENGTH))
    assert isinstance(last(generation), Usage) and last(generation).prediction is None


def test_the_usage_of_an_answer_that_a_stop_string_ends_waits_for_its_note():
    """The end of the choice does not, and tokens and statuses that cross it change nothing."""
    generation = make()
    generation.handle_event(StatusEvent("r", 0, Phase.DECODE))
    generation.handle_event(TokenEvent("r", 0, STOP))
    assert last(generation) == ChoiceFinished(0, "stop", "b")
    generation.handle_event(TokenEvent("r", 0, LETTER))
    generation.handle_event(StatusEvent("r", 0, Phase.DECODE))
    assert not generation.log.is_closed
    end(generation, 0, note(7, 3))
    assert isinstance(last(generation), Usage) and last(generation).prediction == PredictionTokens(3, 4)
    generation.handle_event(EndEvent("r", 0, FinishReason.ABORT))
    assert not any(isinstance(record, Failure) for record in generation.log.records)


def test_without_a_prediction_the_usage_does_not_wait():
    """A stop string ends the answer at once."""
    generation = make(counts_prediction=False)
    generation.handle_event(StatusEvent("r", 0, Phase.DECODE))
    generation.handle_event(TokenEvent("r", 0, STOP))
    assert isinstance(last(generation), Usage)


def test_the_timeline_has_the_note_of_an_answer_that_a_stop_string_has_ended():
    """It comes after the usage, and changes no interval."""
    generation = make(counts_prediction=False)
    generation.log.readers = 1
    generation.handle_event(StatusEvent("r", 0, Phase.DECODE))
    generation.handle_event(TokenEvent("r", 0, STOP))
    intervals = [*generation.timeline.choices[0]]
    assert generation.timeline.view(0.0)["choices"][0]["drafts"] is None
    end(generation, 0, note(7, 3))
    drafts = {
        "tokens": 13,
        "steps": 9,
        "drafted": {PREDICTION: 7, LOOKUP: 5},
        "accepted": {PREDICTION: 3, LOOKUP: 1},
    }
    assert generation.timeline.view(0.0)["choices"][0]["drafts"] == drafts
    assert generation.timeline.choices[0] == intervals and intervals[-1].ended is None


def test_a_cancelled_answer_has_the_counts_of_its_end_in_the_engine():
    """They come with the end that the cancellation brings."""
    generation = make()
    generation.handle_event(StatusEvent("r", 0, Phase.DECODE))
    generation.handle_event(TokenEvent("r", 0, LETTER))
    generation.cancel()
    assert last(generation) == ChoiceFinished(0, "abort")
    end(generation, 0, note(4, 4))
    assert isinstance(last(generation), Usage) and last(generation).prediction == PredictionTokens(4, 0)


def test_a_replayed_answer_waits_for_no_note():
    """Its engine has ended it before, or goes on with it later."""
    generation = make()
    generation.replay([TokenEvent("r", 0, LETTER), TokenEvent("r", 0, STOP)])
    assert isinstance(last(generation), Usage) and last(generation).prediction == PredictionTokens(0, 0)
