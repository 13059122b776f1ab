"""A person beside streams that speculate, and the figures made of both."""

from __future__ import annotations

import pytest

from app.resources import demo_model
from app.text.text_model import TextModel
from benchmarks import speculation_people
from benchmarks.speculation_people import ANSWER_TOKENS, Person, endless, play, questions, summarise
from engine.types import FinishReason, ServiceClass, TokenEvent
from tests import requirements
from tests.benchmarks.test_speculation import CHATS, LONG, endless_answer
from tests.engine.same import make_engine


@pytest.fixture(scope="module")
def text() -> TextModel:
    return TextModel.load(demo_model())


@pytest.fixture(scope="module")
def engine():
    return make_engine(demo_model(), max_num_seqs=16, speculation="auto")


def ask(person: Person, now: float):
    """Return the question of a person that asks within a second."""
    return next(found for at in range(11) if (found := person.question(now + 0.1 * at)))


def test_a_person_asks_after_a_pause_and_reads_before_the_next_question(text):
    """The wait counts from the moment of the question, which may be within a step."""
    person = Person(questions(text, CHATS, 2, 1), seed=1, now=0.0)
    assert person.question(0.1) is None
    first = person.question(5.0)
    assert first is not None and first.service_class is ServiceClass.INTERACTIVE
    assert person.answers[0].asked < 1.1
    person.read([TokenEvent(first.id, 0, 7), TokenEvent("other", 0, 9)], 5.2)
    assert person.question(50.0) is None
    person.read([TokenEvent(first.id, 0, 8, FinishReason.LENGTH)], 5.5)
    assert (person.answers[0].tokens, person.answers[0].gaps) == ([7, 8], [pytest.approx(0.3)])
    second = ask(person, 5.6)
    assert second.prompt != first.prompt and not person.is_done
    person.read([TokenEvent(second.id, 0, 7, FinishReason.LENGTH)], 7.0)
    assert person.is_done


@requirements.a_compiler
def test_a_person_has_answers_beside_streams_that_never_end(text, engine, monkeypatch):
    """When all are complete, the streams are given up."""
    monkeypatch.setattr(speculation_people, "THINK_SECONDS", (0.0, 0.001))
    edits = endless([endless_answer(text, limit) for limit in (12, LONG, LONG)], ServiceClass.BATCH)
    before = engine.load().counters.generated_tokens
    row = play(engine, edits, 3, questions(text, CHATS, 4, 1), seed=1)
    assert engine.load().counters.generated_tokens - before < 2 * LONG
    assert len(row["first_ms"]) == 4
    assert all(0 < len(tokens) <= ANSWER_TOKENS for tokens in row["texts"])
    assert sum(len(tokens) - 1 for tokens in row["texts"]) == len(row["gaps_ms"])
    assert row["streams_tokens_per_s"] > 0
    assert not engine.has_work


def test_ratios_are_those_of_pairs_of_rounds():
    """A round in which the machine was slow is slow in both."""
    rows = [
        {
            "mode": mode,
            "first_ms": [slow * first],
            "gaps_ms": [slow * gap] * 9,
            "streams_tokens_per_s": 1.0,
            "accepted": 2,
        }
        for slow in (1.0, 3.0)
        for mode, first, gap in (("off", 10.0, 5.0), ("auto", 12.0, 5.1))
    ]
    found = summarise(rows)
    assert found["ratios"]["first_p50"]["median"] == pytest.approx(1.2)
    assert found["ratios"]["itl_p99"]["max"] == pytest.approx(1.02)
    assert found["marks"] == {"itl_p99": True, "first_p50": False}
