"""Benchmark of drafts: its requests, and the cost of drafting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from app.resources import demo_model
from app.text.text_model import TextModel
from benchmarks import speculation_cost
from benchmarks.speculation import answers, marks, requests
from benchmarks.speculation_cost import MAX_BYTES, MeasuredSpeculation, StepCosts, cost_marks, shares, table_bytes
from benchmarks.speculation_texts import Case
from engine.scheduling.speculation import Speculation
from engine.types import Request, SamplingParams
from tests import requirements
from tests.engine.same import make_engine

CHATS = [Case("Hello!"), Case("What is 7 plus 8?")]
LONG = 1000  # tokens


@pytest.fixture(scope="module")
def text() -> TextModel:
    return TextModel.load(demo_model())


@pytest.fixture(scope="module")
def engine():
    return make_engine(demo_model(), max_num_seqs=16, speculation="auto")


def endless_answer(text: TextModel, tokens: int) -> Request:
    """Return a request whose answer has that many tokens, whatever they are."""
    request = requests(text, [CHATS[0]], 1)[0]
    return replace(request, id=f"{request.id}-{tokens}", sampling=SamplingParams(max_tokens=tokens, seed=1))


def test_only_the_prediction_has_the_answer(text):
    """A draft from the prompt would hide whether the prediction is of use."""
    known, other = requests(text, [Case("Change it.", "a = 1\n", "a = 1\n"), Case("Why?")], 2)
    assert known.prediction == tuple(text.encode("a = 1\n", add_special_tokens=False))
    assert "a = 1" not in text.decode(known.prompt)
    assert other.prediction == ()


@requirements.a_compiler
def test_a_predicted_answer_has_the_tokens_of_its_prediction(text, engine):
    """A text that the model divides otherwise than the tokenizer would be predicted badly."""
    answer = "def f(x):\n    return 2 * x\n"
    submitted = requests(text, [Case("Change it.", answer, answer)], 1)
    (*tokens, end), *_ = answers(engine, submitted)[0]
    assert tuple(tokens) == submitted[0].prediction
    assert end in text.eos_token_ids


def test_a_mark_is_of_a_measured_case():
    """A case that was not measured neither meets nor misses it."""
    assert marks({"prediction, right, 1 streams": {"median": 2.9}}) == {"prediction, right, 1 streams": False}


def test_the_time_of_a_further_token_is_without_its_caller_and_its_publication(monkeypatch):
    """Both would take it without drafts, too."""
    now = 0.0

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    def further_tokens(self, flight, outcome, publish, outgrown) -> Iterator[int]:
        for number in range(3):
            spend(1.0)
            publish(None, [], 0)
            yield number
        spend(0.5)

    monkeypatch.setattr(speculation_cost.time, "perf_counter", lambda: now)
    monkeypatch.setattr(Speculation, "further_tokens", further_tokens)
    speculation = MeasuredSpeculation.__new__(MeasuredSpeculation)
    for _ in speculation.further_tokens(None, None, lambda *_: spend(10.0), []):
        spend(100.0)
    assert speculation.seconds == pytest.approx(3.5)


@requirements.a_compiler
def test_steps_count_while_all_streams_decode(text, engine):
    """The longer answer goes on alone."""
    scheduler = engine.scheduler
    scheduler.speculation = MeasuredSpeculation(scheduler.policy, scheduler.counters, scheduler.kv_manager)
    before = engine.load().counters.steps
    costs = StepCosts.measure(engine, [endless_answer(text, 10), endless_answer(text, LONG)])
    assert 0 < costs.steps < 12 < engine.load().counters.steps - before
    assert 0 < costs.drafting_seconds < costs.step_seconds


def test_shares_are_medians_of_the_rounds():
    """A disturbed round does not count."""
    rows = [
        {"drafting_seconds": seconds, "step_seconds": 1.0, "steps": 10, "drafted": 5, "all_steps": 20}
        for seconds in (0.01, 0.02, 0.5)
    ]
    found = shares(rows)
    assert (found["share"], found["step_us"], found["drafts_a_step"]) == (0.02, 1e5, 0.25)
    tables = {"own text": 12.0, "prediction": 60.0}
    assert cost_marks({"chat": found, "bytes per token of context": tables}) == {
        "share of time": True,
        "bytes per token": False,
    }


def test_the_tables_of_a_sequence_are_small():
    """Two arrays for its own text, two for a prediction, and the tokens of the prediction."""
    tables = table_bytes()
    assert 8 <= tables["own text"] < 14
    assert 8 <= tables["prediction"] < 14
    assert sum(tables.values()) <= MAX_BYTES
