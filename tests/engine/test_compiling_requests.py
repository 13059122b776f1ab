"""Requests whose grammar is being compiled, on their way into the engine."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine
from engine.errors import InvalidParameter
from engine.intake import Intake
from engine.types import (
    EndEvent,
    Event,
    FinishReason,
    Phase,
    Request,
    SamplingParams,
    ServiceClass,
    StatusEvent,
    TokenEvent,
    Vocabulary,
    WaitReason,
)
from tests.engine.same import make_engine

GRAMMAR = "start: /[a-z]{40}/"


def request(request_id: str = "r", grammar: str = GRAMMAR, n: int = 1) -> Request:
    return Request(id=request_id, prompt=(5, 6, 7), sampling=SamplingParams(max_tokens=4, grammar=grammar), n=n)


class Compiling:
    """An intake whose compilations end when the test says so."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compilation: Future[Any] = Future()
        self.engine = engine
        self.intake = Intake(engine)
        assert engine.constraints is not None
        self._prepare = engine.constraints.prepare
        monkeypatch.setattr(engine.constraints, "prepare", self.prepare)

    def prepare(self, request: Request) -> Future[Any] | None:
        """Compile once the test has ended the compilation."""
        if not self.compilation.done():
            return self.compilation
        if (compilation := self._prepare(request)) is not None:
            compilation.exception()  # waits
        return None

    def submit(self, request: Request) -> list[Event]:
        """Return the events of a new request."""
        self.intake.submit(request)
        return self.turn()

    def abort(self, request_id: str, choice: int | None = None) -> list[Event]:
        """Return the events of an abort."""
        self.intake.abort(request_id, choice)
        return self.turn()

    def turn(self) -> list[Event]:
        """Return the events of a turn of the worker's loop."""
        self.intake.submit_prepared()
        return self.intake.take_events()


@pytest.fixture
def compiling(demo: Path, monkeypatch: pytest.MonkeyPatch) -> Compiling:
    return Compiling(make_engine(demo), monkeypatch)


def test_a_request_waits_for_its_grammar_and_then_runs(compiling: Compiling):
    """Its status gives the reason."""
    [status] = compiling.submit(request())
    assert isinstance(status, StatusEvent)
    assert (status.phase, status.cause) == (Phase.QUEUED, WaitReason.GRAMMAR)
    assert not compiling.engine.has_work
    compiling.compilation.set_result(None)
    assert compiling.turn() == [] and list(compiling.engine.scheduler.requests) == ["r"]


def test_an_aborted_request_never_runs(compiling: Compiling):
    """It ends at once, as when it is queued."""
    compiling.submit(request())
    ended = compiling.abort("r")
    assert [event.finish for event in ended if isinstance(event, EndEvent)] == [FinishReason.ABORT]
    compiling.compilation.set_result(None)
    assert compiling.turn() == [] and not compiling.engine.has_work


def test_one_choice_can_be_aborted(compiling: Compiling):
    """The others run."""
    compiling.submit(request(n=3))
    ended = compiling.abort("r", 1)
    assert [event.choice for event in ended if isinstance(event, EndEvent)] == [1]
    compiling.compilation.set_result(None)
    compiling.turn()
    assert [sequence.choice for sequence in compiling.engine.scheduler.requests["r"]] == [0, 2]


def test_a_grammar_that_cannot_be_compiled_ends_its_request(compiling: Compiling):
    """With the reason; the checker before the engine normally finds it."""
    compiling.submit(request(grammar="start: missing", n=2))
    compiling.compilation.set_result(None)
    ended = compiling.turn()
    errors = [event for event in ended if isinstance(event, EndEvent)]
    assert [event.choice for event in errors] == [0, 1]
    assert {event.code for event in errors} == {InvalidParameter.code} and "missing" in errors[0].message


def test_without_a_vocabulary_a_grammar_is_refused(demo: Path):
    """And with one it is compiled for that vocabulary."""
    engine = make_engine(demo)
    engine.constraints = type(engine.constraints)()  # type: ignore[assignment, call-arg]
    intake = Intake(engine)
    intake.submit(request())
    [refused] = intake.take_events()
    assert isinstance(refused, EndEvent) and "vocabulary" in refused.message
    tokens = (b"<eos>", *(bytes([byte]) for byte in range(256)))
    engine.use_vocabulary(Vocabulary(tokens, (0,), (0,)))
    engine.submit(request("s"))
    assert engine.has_work


def test_a_grammar_that_failed_to_compile_is_not_compiled_again(demo: Path):
    """A request would otherwise wait for the same failure forever."""
    engine = make_engine(demo)
    assert engine.constraints is not None
    wrong = request(grammar="start: missing")
    compilation = engine.constraints.prepare(wrong)
    assert compilation is None or compilation.exception() is not None
    assert engine.constraints.prepare(wrong) is None
    with pytest.raises(InvalidParameter, match="missing"):
        engine.submit(wrong)


def test_a_request_is_paused_while_its_grammar_is_compiled(compiling: Compiling):
    """It is paused in the engine too, and goes on when it is resumed."""
    compiling.submit(request())
    compiling.intake.change("r", is_paused=True, service_class=ServiceClass.BATCH)
    [status] = compiling.turn()
    assert isinstance(status, StatusEvent)
    assert (status.phase, status.cause) == (Phase.PAUSED, WaitReason.CLIENT)
    compiling.compilation.set_result(None)
    compiling.turn()
    assert compiling.engine.load().suspended == (0, 0, 1)
    compiling.intake.change("r", is_paused=False, service_class=ServiceClass.BATCH)
    events: list[Event] = []
    while compiling.engine.has_work:
        events += compiling.engine.step()
    assert len([event for event in events if isinstance(event, TokenEvent)]) == 4
